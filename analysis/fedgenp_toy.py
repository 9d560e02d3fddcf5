"""python -m analysis.fedgenp_toy: see `analysis.papers.fedgenp_toy`."""

import sys

from analysis.papers.fedgenp_toy import main

if __name__ == "__main__":
    sys.exit(main())
