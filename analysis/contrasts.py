"""python -m fedtune.analysis.contrasts: see `fedtune.analysis.papers.contrasts`."""

import sys

from fedtune.analysis.papers.contrasts import main

if __name__ == "__main__":
    sys.exit(main())
