"""fedtune: hyperparameter search for heterogeneous federated learning, on Ray Tune."""

__version__ = "0.1.0"
