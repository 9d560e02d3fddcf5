"""What a search found, as dataframes and figures."""
