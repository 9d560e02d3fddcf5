"""python -m fedtune.search: the command `fedtune search`."""

import sys

from fedtune.commands.search import main

if __name__ == "__main__":
    sys.exit(main())
