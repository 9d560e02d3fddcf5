"""Callbacks of a search: its records, tables and loggers."""
