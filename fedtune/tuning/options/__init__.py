"""The options of runs and searches, and the command-line arguments made from them."""
