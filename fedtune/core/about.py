"""This package: its version, and where its files lie."""

from pathlib import Path

VERSION = "0.3.0"
FOLDER = Path(__file__).parents[1]
