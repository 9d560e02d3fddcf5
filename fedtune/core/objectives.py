"""What a search optimises: one metric with its direction, or up to four of them, and constraints.

    val_acc            the highest validation accuracy             val_loss           the lowest validation loss
    val_acc,comm_mb    several objectives: their Pareto front      val_recall:max     your own metric
    comm_mb<=20        a constraint on a trial's last value

Everything that selects uses these classes, and records hold objectives and constraints in this notation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.metrics import JUDGED, METRIC, METRICS, OBJECTIVES, SIM_SECONDS, worst

WORST = 1e12  # stands for the worst value: schedulers need one, and infinity would spoil their quantiles
TOTALS = {"seconds": "time_total_s"}  # Tune's name for the total of what our rows hold round by round
EXCESSES = "excesses"  # the entry of a trial's result with the excess over each constraint
TEST = "test_"
MOST = 4  # objectives: of more, nearly every trial is on the front


class Objective(NamedTuple):
    """A metric and its direction, "max" or "min"."""

    name: str
    mode: str

    def __str__(self) -> str:
        """As it is typed: with the direction if it is not the metric's default."""
        return self.name if OBJECTIVES.get(self.name) == self.mode else f"{self.name}:{self.mode}"

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.mode == "max" else -1

    @property
    def attribute(self) -> str:
        """The entry of a trial's result with its value."""
        return TOTALS.get(self.name, self.name)

    @property
    def column(self) -> str:
        """The column of the table of trials with its last value."""
        return final(self.name)

    @property
    def tested(self) -> str:
        """The test metric that matches this objective; test accuracy if there is no such test metric."""
        name = self.name if self.name.startswith(TEST) else TEST + self.name.removeprefix("val_")
        return name if name in METRICS or self.name not in METRICS else "test_acc"

    def reported(self, columns: Collection[str]) -> str:
        """The column that tables of fresh-seed runs compare: the matching test metric, test accuracy, or itself."""
        return next((name for name in (self.tested, "test_acc") if name in columns), self.name)

    def sign_of(self, column: str) -> int:
        """1 if more is better in the column that is reported, else -1."""
        return 1 if column == "test_acc" else self.sign

    def better(self, first: float, second: float) -> bool:
        """Whether one value is better than another."""
        return self.sign * first > self.sign * second


class Constraint(NamedTuple):
    """A bound that a metric must keep at a trial's end."""

    name: str
    rule: str  # <= or >=
    bound: float

    def __str__(self) -> str:
        """As it is typed."""
        return f"{self.name}{self.rule}{self.bound:.12g}"

    @property
    def attribute(self) -> str:
        """The entry of a trial's result with its metric."""
        return TOTALS.get(self.name, self.name)

    @property
    def column(self) -> str:
        """The column of the table of trials with the metric's last value."""
        return final(self.name)

    def excess(self, value: float) -> float:
        """How far a value is beyond the bound, as a share of the bound; at most 0 if the bound is kept."""
        over = value - self.bound if self.rule == "<=" else self.bound - value
        return over / (abs(self.bound) or 1.0)


ACCURACY = Objective(METRIC, OBJECTIVES[METRIC])


def final(name: str) -> str:
    """The column of the table of trials with a metric's last value."""
    return name if name in ("comm_mb", "seconds") else f"last_{name}"


def parse(text: str, selectable: Mapping[str, str] = OBJECTIVES) -> tuple[Objective, ...]:
    """Parse one objective, or up to four separated by commas; UserError if a search cannot optimise it.

    selectable: the metrics that may select, with their directions; "" if the direction must be given.
    """
    objectives = tuple(_objective(part.strip(), selectable) for part in text.split(","))
    if len(objectives) > MOST or len({o.name for o in objectives}) < len(objectives):
        raise UserError(f"--objective takes one to {MOST} metrics, separated by commas and each once, but got {text!r}")
    return objectives


def _objective(text: str, selectable: Mapping[str, str]) -> Objective:
    name, colon, mode = text.partition(":")
    _require_known(name, "objective", selectable)
    if colon and mode not in ("max", "min"):
        raise UserError(f"an objective's direction is max or min, but got {text!r}; give {name}:max or {name}:min")
    if not (mode or selectable[name]):
        raise UserError(f"your own metric needs a direction, but got {text!r}; give {name}:max or {name}:min")
    if colon and name in OBJECTIVES and mode != OBJECTIVES[name]:  # the user's own metric may be overruled
        superlative = {"max": "highest", "min": "lowest"}[OBJECTIVES[name]]
        raise UserError(f"the {superlative} {name} is the best, but got {text!r}; leave out :{mode}")
    return Objective(name, mode or selectable[name])


def constraints(text: str, selectable: Collection[str] = OBJECTIVES) -> tuple[Constraint, ...]:
    """Parse constraints, separated by commas; none for an empty text.  UserError for anything else."""
    parsed = tuple(_constraint(part.strip(), selectable) for part in text.split(",")) if text else ()
    for name in dict.fromkeys(c.name for c in parsed):
        _require_values(name, [c for c in parsed if c.name == name])
    return parsed


def _require_values(name: str, bounds: Sequence[Constraint]) -> None:
    """UserError unless some value of a metric satisfies all of these constraints on it."""
    lowest, highest = (0.0, METRICS[name].maximum) if name in METRICS else (-math.inf, math.inf)
    low = max([lowest, *(c.bound for c in bounds if c.rule == ">=")])
    high = min([highest, *(c.bound for c in bounds if c.rule == "<=")])
    if low > high:
        range = f", and {name} is {lowest:g} to {highest:.3g}" if name in METRICS else ""
        raise UserError(f"--subject-to must allow some value of {name}, but got {','.join(map(str, bounds))}{range}")


def _constraint(text: str, selectable: Collection[str]) -> Constraint:
    match = re.fullmatch(r"(\w+)\s*(<=|>=)\s*(\S+)", text)
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if not match or not math.isfinite(bound):
        raise UserError(
            f"--subject-to takes METRIC<=NUMBER or METRIC>=NUMBER, but got {text!r}; give for example comm_mb<=20"
        )
    _require_known(match[1], "metric of a constraint", selectable)
    return Constraint(match[1], match[2], bound)


def _require_known(name: str, kind: str, names: Collection[str]) -> None:
    if name in names:
        return
    if name == "epsilon":
        raise UserError(f"epsilon needs privacy, but got it as {kind} without; give --privacy client")
    if name == SIM_SECONDS:
        raise UserError(f"device seconds need devices, but got {kind} {name} without; give for example --devices alike")
    if name.startswith(TEST):
        of_validation = f"val_{name.removeprefix(TEST)}"
        advice = of_validation if of_validation in names else f"one of {', '.join(names)}"
        rule = "a search must not use test data, or test figures would no longer estimate new data"
        raise UserError(f"{rule}, but got {name}; use {advice}")
    raise unknown(kind, name, list(names))


def parse_recorded(text: str) -> Objective:
    """Parse an objective from a record."""
    name, _, mode = text.partition(":")
    if not re.fullmatch(r"\w+", name) or mode not in ("", "max", "min"):
        raise UserError(f"an objective is recorded as METRIC, METRIC:max or METRIC:min, but got {shown(text)}")
    return Objective(name, mode or OBJECTIVES.get(name, "max"))


class Goal(NamedTuple):
    """A search's objectives and constraints; trials are judged by the first objective.

    growing: those of the user's own metrics that a program file says add up over rounds
    """

    objectives: tuple[Objective, ...] = (ACCURACY,)
    constraints: tuple[Constraint, ...] = ()
    growing: tuple[str, ...] = ()

    @property
    def first(self) -> Objective:
        """The objective by which trials are judged and the best is chosen."""
        return self.objectives[0]

    @property
    def attribute(self) -> str:
        """The entry of a trial's result that schedulers compare."""
        return JUDGED if self.constraints else self.first.attribute

    @property
    def names(self) -> list[str]:
        """The metrics of objectives and constraints, each once."""
        return list(dict.fromkeys([*(o.name for o in self.objectives), *(c.name for c in self.constraints)]))

    @property
    def in_words(self) -> str:
        """The objectives and constraints."""
        constraints_text = f" subject to {' and '.join(map(str, self.constraints))}" if self.constraints else ""
        return self.all_in_words + constraints_text

    @property
    def all_in_words(self) -> str:
        """The objectives: `a`, `a and b`, `a, b and c`."""
        *most, last = map(str, self.objectives)
        return f"{', '.join(most)} and {last}" if most else last

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Goal:
        """The goal of a run, from its record."""
        texts = [str(text) for text in record.get("constraints") or []]
        return cls(
            tuple(parse_recorded(str(text)) for text in record.get("objectives") or [METRIC]),
            tuple(_constraint(text, [re.split("[<>]", text)[0]]) for text in texts),
            tuple(n for n, m in (record.get("metrics") or {}).items() if m.get("grows") and n not in METRICS),
        )

    def to_record(self) -> dict[str, list[str]]:
        """The objectives and constraints for a run's record."""
        return {"objectives": list(map(str, self.objectives)), "constraints": list(map(str, self.constraints))}

    def at_end(self, name: str, value: float, progress: float) -> float:
        """A metric's value extrapolated to the trial's end.  progress: the share of the trial that is done, 0 … 1.

        A value that is known before training stays as it is.
        """
        grows = METRICS[name].grows and METRICS[name].at_end == "linear" if name in METRICS else name in self.growing
        return value / progress if grows and 0 < progress < 1 else value

    def excesses(self, result: Mapping[str, Any], progress: float) -> list[float]:
        """The excess over each constraint that a trial is heading for at its end; at most 0 if it keeps it."""
        return [c.excess(self.at_end(c.name, float(result[c.attribute]), progress)) for c in self.constraints]

    def unkept(self, known: Mapping[str, float]) -> list[float]:
        """The excesses if values that are known before training break a constraint, 0 where none is known; else []."""
        excesses = [c.excess(known[c.name]) if c.name in known else 0.0 for c in self.constraints]
        return excesses if any(e > 0 for e in excesses) else []

    def judged(self, result: Mapping[str, Any], excesses: Sequence[float]) -> float:
        """What schedulers compare: the first objective, or worse than all others if a constraint is broken."""
        broken = min(WORST, sum(max(0.0, e) for e in excesses))  # ε is infinite without noise
        return -self.first.sign * (WORST + broken) if broken else float(result[self.first.attribute])

    def heading(self, result: Mapping[str, Any], progress: float) -> tuple[float, ...]:
        """The objectives that a trial is heading for at its end, turned so that more is better.

        All are worse than those of other trials if it breaks a constraint, and if it diverged.  A single one is what
        schedulers compare.
        """
        count, judged = len(self.objectives), self.first.sign * float(result[self.attribute])
        if count > 1 and result.get("diverged"):
            return (-2 * WORST,) * count
        if count == 1 or judged <= -WORST:
            return (judged,) * count
        ends = [o.sign * self.at_end(o.name, float(result[o.attribute]), progress) for o in self.objectives]
        return tuple(max(-WORST, end) for end in ends)  # ε may be infinite

    def of_diverged(self, chance: float | None, worst_of: Callable[[str], float | None] = worst) -> dict[str, float]:
        """What a diverged trial reports: accuracy at chance level if known, and the worst of all that decides.

        worst_of: the worst value of a metric; None if there is none.
        """
        worst = {o.name: -o.sign * WORST if (w := worst_of(o.name)) is None else w for o in self.objectives}
        judged = {JUDGED: -self.first.sign * 2 * WORST} if self.constraints else {}
        return worst | judged | ({} if chance is None else {METRIC: chance})


BY_ACCURACY = Goal()
