"""python -m analysis.worth: see `analysis.papers.worth`."""

import sys

from analysis.papers.worth import main

if __name__ == "__main__":
    sys.exit(main())
