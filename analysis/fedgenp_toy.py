"""python -m fedtune.analysis.fedgenp_toy: see `fedtune.analysis.papers.fedgenp_toy`."""

import sys

from fedtune.analysis.papers.fedgenp_toy import main

if __name__ == "__main__":
    sys.exit(main())
