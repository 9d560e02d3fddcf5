"""python -m tests.fuzz --minutes N: whatever may come is thrown at every command, and what breaks the rule counted.

python -m tests.fuzz --minutes 60
python -m tests.fuzz --minutes 2 --only records --seed 7
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import seed as seeded  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fuzz import cases, rule, world  # noqa: E402

BATCH = 50  # examples between looks at the clock


def main() -> int:
    """Fuzz until the time is over; 0 if every answer kept the rule."""
    p = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("--minutes", type=float, default=1.0)
    p.add_argument("--only", choices=cases.KINDS, action="append", help="these kinds only")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--run", type=Path, help="the folder of a search to damage, in place of the example")
    args = p.parse_args()
    end, asked, answers = time.monotonic() + 60 * args.minutes, Counter[str](), Counter[str]()
    broken: dict[tuple[str, str], list[str]] = {}
    warnings.simplefilter("ignore")
    rule.warm()
    with tempfile.TemporaryDirectory() as temporary:
        place = world.make(Path(temporary) / "world", args.run)
        batch = 0
        while time.monotonic() < end:
            for kind in args.only or cases.KINDS:
                if time.monotonic() < end:
                    ask(kind, args.seed + batch, place, asked, answers, broken)
            batch += 1
    print(", ".join(f"{n} {kind}" for kind, n in asked.items()), f"= {asked.total()} inputs;", dict(answers))
    for (kind, what), examples in sorted(broken.items(), key=lambda item: -len(item[1])):
        print(f"{len(examples):5} {kind}: {what}\n      {min(examples, key=len)[:700]}")
    print(f"{sum(map(len, broken.values()))} of {asked.total()} broke the rule, in {len(broken)} ways")
    return int(bool(broken))


def ask(
    kind: str,
    seed: int,
    place: Path,
    asked: Counter[str],
    answers: Counter[str],
    broken: dict[tuple[str, str], list[str]],
) -> None:
    """A batch of one kind."""

    @seeded(seed)
    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        said, found = cases.KINDS[kind](place, data)
        asked[kind] += 1
        answers["begun" if found.status is None else str(found.status)] += 1
        if found.broken:
            examples = broken.setdefault((kind, found.kind), [])
            examples.append(f"{said}\n      {' '.join(found.broken.splitlines()[1:])}")
            if len(examples) == 1:
                print(f"{kind}: {found.kind}: {said[:300]}", file=sys.stderr, flush=True)

    one()


if __name__ == "__main__":
    sys.exit(main())
