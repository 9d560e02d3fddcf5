"""One study's folder on disk: its files, its record, its tables."""
