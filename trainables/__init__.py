"""One federated-learning algorithm a file; the file's name is the algorithm's name: there is no registry to edit."""
