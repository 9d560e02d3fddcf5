"""python -m analysis.orders: see `analysis.papers.orders`."""

import sys

from analysis.papers.orders import main

if __name__ == "__main__":
    sys.exit(main())
