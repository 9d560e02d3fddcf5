"""Searches simulated on tables of whole grids."""
