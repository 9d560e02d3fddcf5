"""Ray: starting or joining it, shares of a GPU, metrics for Prometheus."""
