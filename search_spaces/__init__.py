"""Named search spaces, a file per algorithm: `default`, `paper`, `wide`."""
