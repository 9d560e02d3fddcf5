"""The report: one page on what searches and comparisons found."""
