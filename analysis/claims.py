"""python -m fedtune.analysis.claims: see `fedtune.analysis.papers.claims`."""

import sys

from fedtune.analysis.papers.claims import main

if __name__ == "__main__":
    sys.exit(main())
