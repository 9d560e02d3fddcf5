"""What a search found, as dataframes and figures."""

if __name__ != "fedtune.analysis":
    raise ImportError("import it as fedtune.analysis: by two names there would be two of each class")
