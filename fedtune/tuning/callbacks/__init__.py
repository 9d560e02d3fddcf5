"""What listens to a search: its records, tables and loggers."""
