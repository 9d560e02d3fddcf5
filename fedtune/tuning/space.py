"""Search spaces: which hyperparameters, over what.  How far each may go was said in the algorithm's file.

A space is a dict of Ray Tune's own domains, `{"lam": tune.loguniform(0.1, 10), …}`, or a grid: a list of
configurations, or a dict whose values are all `tune.grid_search([...])`.  `when(tune.uniform(0, 0.9), optimizer="sgd")`
is a domain that exists only where another hyperparameter has that value.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ray.tune.search.sample import Categorical, Domain, Float, Integer

from fedtune.core import hyper, own_packages
from fedtune.core.errors import UserError, unknown
from fedtune.federated.algorithm import Algorithm, first_round
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario

KEPT = "space.py"  # in a run's folder
Config = dict[str, Any]
Condition = dict[str, tuple[Any, ...]]  # another hyperparameter -> the values of it that are asked for


class When(NamedTuple):
    """A domain under a condition."""

    domain: Domain
    condition: Condition


def when(domain: Any, **others: Any) -> When:
    """A domain that exists only where other hyperparameters have these values (a tuple or list: one of them)."""
    return When(domain, {n: tuple(v) if isinstance(v, list | tuple) else (v,) for n, v in others.items()})


def met(condition: Condition, chosen: Config) -> bool:
    """Whether what was chosen so far fulfils a condition."""
    return all(n in chosen and chosen[n] in values for n, values in condition.items())


class Space(NamedTuple):
    """What a search goes over: either domains, or the points of a grid."""

    domains: dict[str, Domain]  # in an order in which what a condition looks at comes before it
    points: list[Config]
    conditions: dict[str, Condition] = {}  # of those domains that have one

    @property
    def names(self) -> list[str]:
        """The hyperparameters that vary."""
        return list(self.domains) or sorted({n for point in self.points for n in point})

    @property
    def is_grid(self) -> bool:
        """Whether it is a list of points."""
        return bool(self.points)

    def text(self) -> dict[str, str]:
        """Each hyperparameter's domain in words, for people and for run.json."""
        if self.domains:
            return {name: domain_text(d) + self._where(name) for name, d in self.domains.items()}
        return {n: " | ".join(map(str, dict.fromkeys(p[n] for p in self.points if n in p))) for n in self.names}

    def _where(self, name: str) -> str:
        said = [f"{n} is {' or '.join(map(str, values))}" for n, values in self.conditions.get(name, {}).items()]
        return f" where {' and '.join(said)}" if said else ""


def tunable(cls: type[Algorithm], *names: str, **narrowed: tuple[float, float]) -> dict[str, Domain]:
    """The domains of these hyperparameters: over all their declared range, or over the narrower one given.

        tunable(GFPL, "lam", "lr", start=(1, 14))

    Names are the algorithm's or the scenario's (lr, momentum, batch, local_epochs, …).
    """
    whole = {name: hyper.find(name, cls, Scenario).domain() for name in names}
    return whole | {name: hyper.find(name, cls, Scenario).domain(*ends) for name, ends in narrowed.items()}


def lines(**values: list[Any]) -> list[Config]:
    """The grid of a paper's figures: each varies one hyperparameter and leaves the others at their defaults."""
    return [{name: value} for name, grid in values.items() for value in grid]


def names(algo: str) -> list[str]:
    """The named spaces of an algorithm."""
    return [n for n, v in vars(_module(algo)).items() if not n.startswith("_") and isinstance(v, dict | list)]


def load(name: str, experiment: Experiment) -> Space:
    """A space by name, or from a file `path/to/file.py` (its SPACE or default) or `path/to/file.py:name`.

    Pinned hyperparameters leave it.  UserError if it is unknown, empty, contradictory or out of range.
    """
    if file := file_of(name):
        module = _file(file[0])
        member = file[1][1:] or ("SPACE" if hasattr(module, "SPACE") else "default")
    else:
        module, member = _module(experiment.algorithm), name
    found = {n: v for n, v in vars(module).items() if not n.startswith("_") and isinstance(v, dict | list)}
    if member not in found:
        raise unknown(f"search space of {experiment.algorithm}", member, found)
    return _checked(name, found[member], experiment)


def widened(space: Space, also: str | None, experiment: Experiment) -> Space:
    """The space with these hyperparameters too, over their declared ranges or the narrower ones given.

    also: `lr=0.001..0.3,momentum`.  UserError for what is unknown, pinned, there already, or a grid's.
    """
    if not also:
        return space
    if space.is_grid:
        raise UserError(f"--also adds ranges to a space of ranges, but this space is a grid; got --also {also}")
    domains, known = dict(space.domains), experiment.knobs()
    for text in also.split(","):
        name, given, ends = text.partition("=")
        if name not in known:
            raise unknown(f"hyperparameter of {experiment.algorithm}", name, known)
        if name in domains or name in experiment.pinned:
            where = "the space" if name in domains else "--set"
            raise UserError(f"--also names what is not searched or pinned yet, but {name} is in {where}; leave it out")
        low, dots, high = ends.partition("..")
        if given and not (dots and low and high):
            raise UserError(f"--also needs NAME or NAME=LOW..HIGH, but got {text!r}; for instance lr=0.001..0.3")
        domains[name] = known[name].domain(*([known[name].check(low), known[name].check(high)] if given else []))
    return space._replace(domains=domains)


def also_text(name: str, domain: Domain) -> str:
    """What `widened` reads to add this domain to another space."""
    if isinstance(domain, Categorical):
        return name
    low, high = _ends(name, domain)
    return f"{name}={low!r}..{high!r}"


def file_of(name: str) -> tuple[Path, str] | None:
    """The file that a space's name points to, and the `:name` in it or ""; None if it is no file."""
    found = re.fullmatch(r"(.*\.py)(:\w+)?", name)
    return (Path(found[1]), found[2] or "") if found else None


def keep(name: str, run: Path) -> None:
    """Copy a space's file, if it has one, into a run's folder: the run goes on from there."""
    file = file_of(name)
    if file and file[0] != run / KEPT:
        shutil.copyfile(file[0], run / KEPT)


def kept(name: str, run: Path) -> str:
    """The space's name with the copy in the run's folder, if there is one."""
    file = file_of(name)
    return f"{run / KEPT}{file[1]}" if file and (run / KEPT).exists() else name


def _checked(name: str, raw: dict[str, Any] | list[Config], experiment: Experiment) -> Space:
    if isinstance(raw, dict) and any(_is_grid(v) for v in raw.values()):
        ranges = [n for n, v in raw.items() if isinstance(v, Domain)]
        if ranges:
            raise UserError(
                f"a space is a grid or has ranges, not both, but in {name!r} {', '.join(ranges)} "
                "are ranges beside grid_search; make them grid_search([...]) too, or use tune.choice"
            )
        lists = {n: v["grid_search"] if _is_grid(v) else [v] for n, v in raw.items()}
        raw = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    known = experiment.knobs()
    for n in raw if isinstance(raw, dict) else {n for point in raw for n in point}:
        if n not in known:
            raise unknown(f"hyperparameter of {experiment.algorithm} in space {name!r}", n, known)
    if isinstance(raw, list):
        points = [{n: known[n].check(v) for n, v in p.items() if n not in experiment.pinned} for p in raw]
        space = Space({}, _distinct(points))
    else:
        free = {n: v for n, v in raw.items() if n not in experiment.pinned}
        conditions = _conditions(name, free, experiment)
        domains = {n: _domain(n, v.domain if isinstance(v, When) else v) for n, v in free.items() if n in conditions}
        for n, domain in domains.items():
            for value in _ends(n, domain):
                known[n].check(value)
        ordered = {n: domains[n] for n in _ordered(name, conditions)}
        space = Space(ordered, [], {n: c for n, c in conditions.items() if c})
    if not space.names:
        pinned = f"; pinned are {', '.join(experiment.pinned)}" if experiment.pinned else ""
        raise UserError(f"a search needs something to vary, but space {name!r} is empty{pinned}; use fedtune run")
    return space


def _conditions(space: str, raw: dict[str, Any], experiment: Experiment) -> dict[str, Condition]:
    """The condition of each domain that can exist, empty where it has none.  What is not searched is known already."""
    known, fixed, found = experiment.knobs(), experiment.configuration({}), {}
    for name, value in raw.items():
        condition = value.condition if isinstance(value, When) else {}
        for other, values in condition.items():
            if other not in known:
                raise unknown(f"hyperparameter of {experiment.algorithm} in space {space!r}", other, known)
            for v in values:
                known[other].check(v)
        if met({o: v for o, v in condition.items() if o not in raw}, fixed):
            found[name] = {o: v for o, v in condition.items() if o in raw}
    return found


def _ordered(space: str, conditions: dict[str, Condition]) -> list[str]:
    """Names in an order in which what a condition looks at comes before it."""
    out: list[str] = []
    while len(out) < len(conditions):
        ready = [n for n, c in conditions.items() if n not in out and all(o in out for o in c)]
        if not ready:
            raise UserError(
                f"a condition looks at what can be chosen before it, but in space {space!r} "
                f"{', '.join(n for n in conditions if n not in out)} wait for one another or for what never exists"
            )
        out += ready
    return out


def inside(space: Space, config: Config) -> tuple[Config, Config]:
    """A configuration moved into the space, and those of its values that lie outside, as they are."""
    point: Config = {}
    outside: Config = {}
    for name, domain in space.domains.items():
        if not met(space.conditions.get(name, {}), point):
            continue
        value = config["lr"] if config[name] is None else config[name]  # none is "the clients' learning rate"
        if isinstance(domain, Categorical):
            point[name] = value if value in domain.categories else domain.categories[0]
        else:
            low, high = _ends(name, domain)
            point[name] = min(max(value, low), high)
        if point[name] != value:
            outside[name] = value
    return point, outside


def first_effect(space: Space, experiment: Experiment, within: float = math.inf) -> tuple[int, str]:
    """The latest first-effect round of any hyperparameter of the space, anywhere in it, and that one's name.

    No early stopping should judge a trial before that round: the value could not have mattered yet.  What matters only
    after round `within`, if ever, or is declared rare, is left out.
    """
    cls = type(experiment.resolve({})[0])
    rare = {n for n, knob in hyper.knobs(cls).items() if knob.rare}
    latest, whose = 1, ""
    for schedule in _schedules(space, cls):
        algorithm, _ = experiment.resolve(schedule)
        for name in set(space.names) - rare:
            t = first_round(algorithm, name)
            if latest < t <= within:
                latest, whose = t, name
    return latest, whose


def _schedules(space: Space, cls: type[Algorithm]) -> Iterator[Config]:
    """Every setting in the space of the few hyperparameters that decide when others have an effect."""
    if space.is_grid:
        yield from _distinct([{n: p[n] for n in cls.schedule if n in p} for p in space.points])
        return
    values = {}
    for name in cls.schedule:
        domain = space.domains.get(name)
        if isinstance(domain, Categorical):
            values[name] = list(domain.categories)
        elif isinstance(domain, Integer):
            values[name] = list(range(domain.lower, domain.upper))
    yield from (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))


def domain_text(domain: Domain) -> str:
    """A domain in words."""
    if isinstance(domain, Categorical):
        return " | ".join(map(str, domain.categories))
    low, high = _ends("", domain)
    log = " (log)" if "Log" in type(domain.get_sampler()).__name__ else ""
    return f"{low:g} … {high:g}{log}"


def grid_values(name: str, domain: Domain) -> list[Any]:
    """All values of a finite domain; UserError for a range of real numbers."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, Integer):
        return list(range(domain.lower, domain.upper))
    raise UserError(f"a grid needs a list of values, but {name} is the range {domain_text(domain)}; use tune.choice")


def _ends(name: str, domain: Domain) -> list[Any]:
    """What to validate of a domain: its categories, or its least and largest value."""
    if isinstance(domain, Categorical):
        if not domain.categories:
            raise UserError(f"{name} needs at least one value to choose from, but its choice is empty")
        return list(domain.categories)
    assert isinstance(domain, Integer | Float)
    low, high = domain.lower, domain.upper - 1 if isinstance(domain, Integer) else domain.upper
    if low > high:
        raise UserError(f"{name} needs low <= high, but its range is {low} … {high}")
    return [low, high]


def _domain(name: str, value: Any) -> Domain:
    if isinstance(value, Integer | Float | Categorical):
        return value
    if isinstance(value, Domain):
        raise UserError(f"{name} must be a range or a choice of Ray Tune's, but got {type(value).__name__}")
    return Categorical([value])  # a constant


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and "grid_search" in value


def _distinct(points: list[Config]) -> list[Config]:
    return [p for i, p in enumerate(points) if p not in points[:i]]


def _module(algo: str) -> ModuleType:
    own_packages.pin()
    name = f"search_spaces.{algo}"
    if importlib.util.find_spec(name) is None:
        raise UserError(f"{algo} needs a search space, but there is no search_spaces/{algo}.py; give --space FILE.py")
    return importlib.import_module(name)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"--space needs a name or a Python file, but there is no file {path}")
    own_packages.pin()
    spec = importlib.util.spec_from_file_location("user_space", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("fedtune.space", sys.modules[__name__])  # where files of 0.1.0 take `when` from
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"the search space {path} does not load: {type(error).__name__}: {error}") from error
    return module
