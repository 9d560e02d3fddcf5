"""python -m tests.fuzz.deaths --minutes N: processes killed at random moments, until the time is over.

Stories (a search, an extension, a comparison, a reproduction) are run, killed up to three times each and resumed, and
their rounds compared with those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from fuzz import crashes, kills  # noqa: E402
from fuzz.crashes import STORIES  # noqa: E402


def main() -> int:
    """Try deaths until the time is over; 0 if nothing was lost, doubled, different, refused or shown as a stack."""
    p = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.fuzz.deaths", description=__doc__)
    p.add_argument("--minutes", type=float, default=10.0, help="of kills (default 10)")
    p.add_argument("--only", choices=STORIES, action="append", help="these stories only")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    warnings.simplefilter("ignore")
    stories, chance = [STORIES[name] for name in args.only or STORIES], random.Random(args.seed)
    random.seed(args.seed)
    killed, total, trouble, runs = Counter[str](), crashes.Difference(0, 0, 0), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="fedtune-deaths-") as temporary:
        place = Path(temporary)
        wholes = {s.name: kills.undisturbed(s, place / f"whole-{i}") for i, s in enumerate(stories)}
        end = time.monotonic() + 60 * args.minutes
        while time.monotonic() < end:
            story = chance.choice(stories)
            fate = kills.disturbed(story, wholes[story.name], place / "killed", chance)
            killed += fate.kills
            runs[story.name] += 1
            total = crashes.Difference(*(a + b for a, b in zip(total, fate.difference, strict=True)))
            if fate.trouble or any(fate.difference):
                trouble[f"{story.name}: {fate.trouble or fate.difference}"] += 1
                shutil.copytree(place / "killed", Path(tempfile.mkdtemp(prefix="fedtune-death-")), dirs_exist_ok=True)
            print(f"{story.name}: {dict(fate.kills)} {fate.trouble} {fate.difference}", file=sys.stderr, flush=True)
    print(f"{killed.total()} kills {dict(killed)} in {runs.total()} runs {dict(runs)}; rounds {total._asdict()}")
    for what, n in trouble.items():
        print(f"{n:5} {what}")
    return int(bool(sum(total) + trouble.total()))


if __name__ == "__main__":
    sys.exit(main())
