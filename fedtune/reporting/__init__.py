"""The report: one page on what searches and comparisons found."""

from fedtune.user_code import sibling_packages

sibling_packages.pin("analysis")  # a report's figures are those of our analysis
