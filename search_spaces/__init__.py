"""Named search spaces, a file per algorithm: `default`, `paper`, `wide`."""

if __name__ != "fedtune.search_spaces":
    raise ImportError("import it as fedtune.search_spaces: by two names there would be two of each class")
