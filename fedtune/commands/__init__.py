"""The commands, a module each: its arguments, and what it calls."""
