"""A paper's table or figure as a grid of runs, next to the published figures."""
