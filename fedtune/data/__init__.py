"""Data sets, how their rows are partitioned, and the federation that comes of it."""
