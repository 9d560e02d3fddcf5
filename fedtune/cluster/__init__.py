"""Ray: starting or joining it, jobs, shares of a GPU, metrics for Prometheus."""
