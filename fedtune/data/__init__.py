"""Data sets, partitions of their rows over clients, and the resulting federation."""
