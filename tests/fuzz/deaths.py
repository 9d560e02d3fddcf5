"""python -m tests.fuzz.deaths --minutes N: disks that die between two writes, processes killed at random moments.

Of every story (a search, an extension, a comparison, a reproduction) all that it writes into its folder is recorded
once; the folder is made again as it is after every change, and after a part of one; status, report, frames and resume
are asked, and some are resumed to the end.  Then stories are run and killed until the time is over.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from fuzz import crashes, kills, recording  # noqa: E402
from fuzz.crashes import STORIES, Story  # noqa: E402


def main() -> int:
    """Try deaths until the time is over; 0 if nothing was lost, doubled, different, refused or shown as a stack."""
    p = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m tests.fuzz.deaths",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("--minutes", type=float, default=10.0, help="of kills, after the disks (default 10)")
    p.add_argument("--only", choices=STORIES, action="append", help="these stories only")
    p.add_argument("--moments", type=int, default=10**6, help="of each recording that are looked at (default: all)")
    p.add_argument("--resumed", type=int, default=5, help="of each recording that are resumed (default 5)")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    warnings.simplefilter("ignore")
    chosen, wrong = [STORIES[name] for name in args.only or STORIES], 0
    with tempfile.TemporaryDirectory(prefix="fedtune-deaths-") as temporary:
        place = Path(temporary)
        if args.moments:
            for story in chosen:
                wrong += disks(story, place / "disks" / story.name.replace(" ", "-"), args)
        if args.minutes:
            wrong += machines(chosen, place, args)
    return int(bool(wrong))


def disks(story: Story, at: Path, args: argparse.Namespace) -> int:
    """The disk dies at every moment of a story; how many answers were wrong."""
    chance = random.Random(args.seed)
    at.mkdir(parents=True)
    (at / "fair.py").write_text(crashes.FAIR)
    for line in story.before:
        subprocess.run(crashes.command(line, at), check=True, capture_output=True)
    ended, changes = recording.record(crashes.command(story.words, at), at / "run", at / "log")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (at / "log").unlink()
    whole = crashes.rows(at / "run")
    moments = list(crashes.moments(changes, chance))
    looked = sorted(chance.sample(moments, min(args.moments, len(moments))))
    broken, refused = Counter[str](), Counter[str]()
    place = at / "dead"
    place.mkdir()
    for link in ("fair.py", "first"):
        if (at / link).exists():
            (place / link).symlink_to(at / link)
    goes_on = []
    for i, part, run in crashes.folders(changes, looked, place / "run"):
        wrong, said = crashes.judged(run, crashes.onward(story, run), whole, chance.random() < 0.02)
        if wrong:
            broken[wrong.splitlines()[0]] += 1
            print(f"{story.name}, change {i} + {part:.2f}: {wrong}", file=sys.stderr, flush=True)
        elif said != "accepted":
            refused[re.sub(r"\d[\d_-]+", "N", said)] += 1
        else:
            goes_on.append((i, part))
    print(
        f"{story.name}: {len(changes)} changes, {len(looked)} of {len(moments)} moments looked at: "
        f"{broken.total()} wrong answers, {refused.total()} not to be resumed {dict(refused)}",
        flush=True,
    )
    return broken.total() + _resumed(
        story, changes, chance.sample(goes_on, min(args.resumed, len(goes_on))), place, whole
    )


def _resumed(
    story: Story,
    changes: list[recording.Change],
    chosen: list[tuple[int, float]],
    place: Path,
    whole: dict[tuple[str, ...], list[str]],
) -> int:
    """Go on with the folder of some moments to the end; how much of that was wrong."""
    if story.before:
        return 0  # begun again beside it, as if nothing had been there
    total, failed = crashes.Difference(0, 0, 0), 0
    for i, part, run in crashes.folders(changes, chosen, place / "run"):
        line = crashes.onward(story, run)
        ended = subprocess.run(crashes.command(line, place), capture_output=True, text=True, timeout=1200)
        if ended.returncode:
            failed += 1
            print(f"{story.name}, change {i} + {part:.2f}: {(ended.stdout + ended.stderr)[-600:]}", file=sys.stderr)
            continue
        found = crashes.difference(crashes.rows(run), whole)
        total = crashes.Difference(*(a + b for a, b in zip(total, found, strict=True)))
        if any(found):
            print(f"{story.name}, change {i} + {part:.2f}: {found}", file=sys.stderr, flush=True)
    print(f"{story.name}: {len(chosen)} resumed, {failed} failed; rounds {_figures(total)}", flush=True)
    return failed + sum(total)


def machines(stories: list[Story], place: Path, args: argparse.Namespace) -> int:
    """Processes are killed until the time is over; how much was wrong."""
    chance = random.Random(args.seed)
    random.seed(args.seed)
    wholes = {s.name: kills.undisturbed(s, place / f"whole-{i}") for i, s in enumerate(stories)}
    killed, total, trouble, runs = Counter[str](), crashes.Difference(0, 0, 0), Counter[str](), Counter[str]()
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        story = chance.choice(stories)
        fate = kills.disturbed(story, wholes[story.name], place / "killed", chance)
        killed += fate.kills
        runs[story.name] += 1
        total = crashes.Difference(*(a + b for a, b in zip(total, fate.difference, strict=True)))
        if fate.trouble or any(fate.difference):
            what = fate.trouble or str(fate.difference)
            trouble[f"{story.name}: {what}"] += 1
            shutil.copytree(place / "killed", Path(tempfile.mkdtemp(prefix="fedtune-death-")), dirs_exist_ok=True)
        print(f"{story.name}: {dict(fate.kills)} {fate.trouble} {fate.difference}", file=sys.stderr, flush=True)
    print(f"{killed.total()} kills {dict(killed)} in {runs.total()} runs {dict(runs)}; rounds {_figures(total)}")
    for what, n in trouble.items():
        print(f"{n:5} {what}")
    return sum(total) + trouble.total()


def _figures(found: crashes.Difference) -> str:
    return ", ".join(f"{name} {n}" for name, n in found._asdict().items())


if __name__ == "__main__":
    sys.exit(main())
