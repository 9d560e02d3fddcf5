"""A paper's table or figure as a grid of runs, beside what the paper printed."""
