"""Draw the pages' pictures, for light and for dark pages, from kept results and the code's own values.

    python docs/figures.py [NAME …]

A picture's docstring is what its alternative text says on the page that shows it.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from charts import CHARTS
from diagrams import DIAGRAMS
from drawing import MODES

FOLDER = Path(__file__).parent / "pictures"
PICTURES = {picture.__name__.rstrip("_").replace("_", "-"): picture for picture in (*CHARTS, *DIAGRAMS)}


def alternative(name: str) -> str:
    """What a picture shows, in words."""
    return " ".join(inspect.getdoc(PICTURES[name]).split())  # type: ignore[union-attr]


def drawn(name: str) -> dict[Path, str]:
    """A picture's files and what they hold."""
    picture = PICTURES[name]()
    return {FOLDER / f"{name}-{mode}.svg": picture.svg(mode, alternative(name)) for mode in MODES}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        for file, text in drawn(chosen).items():
            file.write_text(text)
            print(f"{file.relative_to(FOLDER.parents[1])} {len(text):,} bytes")
