"""python -m analysis.contrasts: see `analysis.papers.contrasts`."""

import sys

from analysis.papers.contrasts import main

if __name__ == "__main__":
    sys.exit(main())
