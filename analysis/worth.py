"""python -m fedtune.analysis.worth: see `fedtune.analysis.papers.worth`."""

import sys

from fedtune.analysis.papers.worth import main

if __name__ == "__main__":
    sys.exit(main())
