"""python -m analysis.claims, as README names it: see `analysis.papers.claims`."""

import sys

from analysis.papers.claims import main

if __name__ == "__main__":
    sys.exit(main())
