"""Many runs: checks on fresh seeds, comparisons, reproductions of papers' tables."""
