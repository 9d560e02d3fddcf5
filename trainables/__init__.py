"""One federated-learning algorithm per file.  The file's name is the algorithm's name; there is no registry to edit."""

if __name__ != "fedtune.trainables":
    raise ImportError("import it as fedtune.trainables: by two names there would be two of each class")
