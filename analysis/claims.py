"""python -m analysis.claims: see `analysis.papers.claims`."""

import sys

from analysis.papers.claims import main

if __name__ == "__main__":
    sys.exit(main())
