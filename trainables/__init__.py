"""One federated-learning algorithm per file.  The file's name is the algorithm's name; there is no registry to edit."""
