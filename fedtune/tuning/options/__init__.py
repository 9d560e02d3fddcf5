"""What can be asked of a run and of a search, and the arguments made of it."""
