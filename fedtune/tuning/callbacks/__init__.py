"""Callbacks of a search: its live view and its trackers."""
