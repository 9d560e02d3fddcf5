"""A program of the user's as what is trained: its file, its process, the rows that it prints."""
