"""python -m fedtune.analysis.orders: see `fedtune.analysis.papers.orders`."""

import sys

from fedtune.analysis.papers.orders import main

if __name__ == "__main__":
    sys.exit(main())
