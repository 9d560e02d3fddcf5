"""The report: one page on what searches and comparisons found."""

from fedtune.core import own_packages

own_packages.pin("analysis")  # a report's figures are those of our analysis
