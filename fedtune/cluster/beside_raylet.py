"""Runs a script of Ray's that a raylet has started, given with its words, and sees that it ends with the raylet.

Ray's agents see it themselves when their raylet is gone.  But before they end, they report it to the control service,
and wait a minute for an answer if that has gone, too, as it has when a driver that started Ray was killed.
"""

from __future__ import annotations

import os
import runpy
import select
import sys
import threading
import time
from pathlib import Path

GRACE = 2.0  # seconds for the report


def main() -> None:
    """Be `python SCRIPT WORDS…`."""
    if hasattr(select, "poll"):
        threading.Thread(target=_end_with_raylet, daemon=True).start()
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _end_with_raylet() -> None:
    """The other end of standard input is the raylet's."""
    ended = select.poll()
    ended.register(0, 0)  # standard input: whether it hangs up, not what there is to read
    [(_, event)] = ended.poll()
    if event & select.POLLHUP:  # and not because it is closed, which tells nothing of the raylet
        time.sleep(GRACE)
        os._exit(1)


if __name__ == "__main__":
    main()
