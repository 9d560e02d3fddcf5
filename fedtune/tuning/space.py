"""Search spaces: which hyperparameters, over which values.  The algorithm's file declares how far each may go.

A space is a dict of Ray Tune's own domains, `{"lam": tune.loguniform(0.1, 10), …}`, or a grid: a list of
configurations, or a dict whose values are all `tune.grid_search([...])`.  `when(tune.uniform(0, 0.9), optimizer="sgd")`
is a domain that exists only where another hyperparameter has that value.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ray.tune.search.sample import Categorical, Domain

from fedtune.core import hyper
from fedtune.core.errors import UserError, require_known, shown
from fedtune.core.hyper import Hyperparameter, Range
from fedtune.core.terminal import say, silent
from fedtune.core.workload import Workload
from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import shared
from fedtune.tuning.shared import with_shared as with_shared
from fedtune.tuning.space_types import (
    ByRounds,
    Condition,
    Config,
    Space,
    Under,
    When,
    as_domain,
    distinct,
    domain_text,
    fitted,
    met,
    nearest,
    require_points,
    when,
)
from fedtune.tuning.space_types import varied_text as varied_text
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile


def tunable(cls: type[Algorithm], *names: str, **narrowed: tuple[float, float]) -> dict[str, Domain]:
    """The ranges of these hyperparameters: each the whole declared range, or the narrower one that you give.

        tunable(GFPL, "lam", "lr", start=(1, 14))

    Names are the algorithm's or the scenario's (lr, momentum, batch, local_epochs, …).

    >>> from fedtune.tuning.space import tunable
    >>> from fedtune.trainables.fedprox import FedProx
    >>> space = tunable(FedProx, "mu", lr=(0.01, 0.1))
    >>> space["lr"].lower, space["lr"].upper
    (0.01, 0.1)
    """
    declared = {name: hyper.find(name, cls, Scenario).domain() for name in names}
    return declared | {name: hyper.find(name, cls, Scenario).domain(*ends) for name, ends in narrowed.items()}


def lines(**values: list[Any]) -> list[Config]:
    """A list of configurations that each set one hyperparameter and leave the others at their defaults.

    >>> from fedtune.tuning.space import lines
    >>> lines(mu=[0.1, 1.0])
    [{'mu': 0.1}, {'mu': 1.0}]
    """
    return [{name: value} for name, grid in values.items() for value in grid]


def derived(workload: Workload) -> dict[str, Any]:
    """The space of a workload that has none of its own: what it says is searched, over its declared ranges; what all
    algorithms share, over the range that all have.
    """
    declared, traits = workload.hyperparameters(), workload.traits
    range_of = shared.of_undeclared if traits.common else Hyperparameter.domain
    domains = {name: range_of(declared[name]) for name in traits.searched}
    return {n: when(domains[n], **where) if where else domains[n] for n, where in traits.searched.items()}


def names(algo: str) -> list[str]:
    """The named spaces of an algorithm."""
    return list(dict.fromkeys(["default", *registry.spaces(algo)]))


def load(name: str, workload: Workload, with_more: bool = False) -> Space:
    """A space by name, or from a file: `path/to/file.py` (its SPACE or default) or `path/to/file.py:name`.

    Fixed hyperparameters are not searched.  UserError if it is unknown, contradictory, out of range, or empty though
    it is not searched `with_more`.
    """
    if file := file_of(name):
        module = _module(file[0])
        spaces, member = registry.members(module), file[1][1:] or ("SPACE" if hasattr(module, "SPACE") else "default")
    else:
        spaces, member = {"default": derived(workload)} | workload.spaces(), name
    require_known(f"search space of {workload.name}", [member], spaces)
    return checked(name, spaces[member], workload, with_more)


def varied(space: Space, asked: Sequence[str], workload: Workload) -> Space:
    """The space with these hyperparameters too, or over these ranges: `lr=0.001..0.3 log`, `momentum`.

    A name alone is searched over its declared range; some exist only with certain values of others.  UserError for what
    is unknown, fixed or not declared.
    """
    if asked and space.is_grid:
        raise UserError(f"--vary is for a space of ranges, but this space is a grid; got --vary {asked[0]!r}")
    domains, declared, names = dict(space.domains), workload.hyperparameters(), list(map(named, asked))
    for text in asked:
        name, given, written = text.partition("=")
        if names.count(name) > 1:
            raise UserError(f"--vary names each hyperparameter once, but {name} comes several times")
        require_known(f"hyperparameter of {workload.name}", [name], declared, f"fedtune list {workload.name}")
        if name in workload.pinned:
            raise UserError(f"--vary takes what is not fixed, but {name} is in --set; leave it out")
        domains[name] = _range(declared[name], written if given else None, name in domains)
    needs = {n: {o: v for o, v in on.items() if o in domains} for n, on in workload.traits.needs.items()}
    conditions = {n: space.conditions.get(n) or needs.get(n, {}) for n in domains}
    ordered = {n: domains[n] for n in _ordered("--vary", conditions)}
    return space._replace(domains=ordered, conditions={n: c for n, c in conditions.items() if c})


def as_recorded(space: Space, texts: Mapping[str, str], workload: Workload) -> Space:
    """The space with a record's ranges, in words, where they are others now: by another release, or more rounds."""
    declared, then = workload.hyperparameters(), {n: text.partition(" where ")[0] for n, text in texts.items()}
    changed = {n: then[n] for n, d in space.domains.items() if n in then and then[n] != domain_text(d)}
    with silent():  # nobody has just written them
        return space._replace(domains=space.domains | {n: _range(declared[n], t, True) for n, t in changed.items()})


def named(text: str) -> str:
    """The hyperparameter that a text of --vary names."""
    return text.partition("=")[0]


def _range(hp: Hyperparameter, written: str | None, searched: bool) -> Domain:
    """A hyperparameter's range as it is written, or its declared one.  searched: whether the space has it already."""
    example = f"for instance {hp.name}={hp.range_text()}" if hp.low is not None else f"it takes {hp.range_text()}"
    if written is None:
        if searched:
            raise UserError(f"{hp.name} is searched already; give --vary its range, {example}")
        return hp.domain()
    if "|" in written:
        return fitted(hp, Categorical([word.strip() for word in written.split("|")]).uniform())
    if not (found := Range.parse(written)) or hp.choices:
        raise UserError(f"--vary needs NAME or NAME=LOW..HIGH, or 'NAME=LOW..HIGH log', but got {written!r}; {example}")
    if hp.log and not found.log:
        say(f"note: {hp.name} is searched evenly over {written}; '{hp.name}={written} log' does so on a log scale")
    return hp.within(found.low, found.high, found.log).domain()


def file_of(name: str) -> tuple[Path, str] | None:
    """The file that a space's name points to, and the `:name` in it or ""; None if it is no file."""
    match = re.fullmatch(r"(.*\.py)(:\w+)?", name)
    return (Path(match[1]), match[2] or "") if match else None


def files(name: str) -> tuple[UserFile, ...]:
    """The file of a space and the modules of its folder that it imports; none of a space that is no file's."""
    file = file_of(name)
    return user_files.take(str(file[0]))[1] if file else ()


def with_whole_path(name: str) -> str:
    """The space's name, with the whole path of its file if it has one."""
    file = file_of(name)
    return f"{user_files.whole_path(file[0])}{file[1]}" if file else name


def inside(space: Space, config: Config) -> tuple[Config, Config]:
    """A configuration moved into the space, and those of its values that lie outside, as they are."""
    point, outside = Config(), Config()
    for name, domain in space.domains.items():
        if not met(space.conditions.get(name, {}), point):
            continue
        value = config["lr"] if config[name] is None else config[name]  # none is "the clients' learning rate"
        point[name] = nearest(domain, value)
        if point[name] != value:
            outside[name] = value
    return point, outside


def _module(path: Path) -> ModuleType:
    try:
        name, _ = user_files.take(str(path))
    except UserError as error:
        if path.exists():
            raise
        raise UserError(f"--space needs a name or a Python file, but there is no file {path}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray's, of how a range is written
        module: ModuleType = user_files.load(name, "search space")
    return module


def checked(name: str, raw: dict[str, Any] | list[Config], workload: Workload, with_more: bool = False) -> Space:
    """The space without fixed hyperparameters; UserError if it is empty, contradictory or out of range."""
    _require_names(name, raw, workload)
    if isinstance(raw, dict):
        raw = _resolved(name, raw, workload)
        if any(_is_grid(v) for v in raw.values()):
            raw = _combinations(name, raw)
    declared = workload.hyperparameters()
    if isinstance(raw, list):
        require_points(len(raw))
        points = [{n: declared[n].check(v) for n, v in p.items() if n not in workload.pinned} for p in raw]
        space = Space({}, distinct(points))
    else:
        space = _of_ranges(name, {n: v for n, v in raw.items() if n not in workload.pinned}, workload)
    if not (space.names or with_more):
        pinned = f"; fixed are {', '.join(workload.pinned)}" if workload.pinned else ""
        raise UserError(
            f"a search needs something to vary, but space {name!r} is empty{pinned}; give --vary, or another --space"
        )
    return space


def _require_names(space: str, raw: Any, workload: Workload) -> None:
    declared, kind = workload.hyperparameters(), f"hyperparameter of {workload.name} in space {space!r}"
    for point in raw if isinstance(raw, list) else [raw]:
        if not isinstance(point, dict):
            what = f"{space!r} holds {shown(point)}"
            raise UserError(f"a space is a dict of hyperparameters, or a list of dicts, but {what}")
        for n in point:
            if not isinstance(n, str):
                raise UserError(f"a space names hyperparameters by text, but {space!r} has the key {shown(n)}")
            require_known(kind, [n], declared, f"fedtune list {workload.name}")


def _of_ranges(name: str, raw: dict[str, Any], workload: Workload) -> Space:
    declared, conditions = workload.hyperparameters(), _conditions(name, raw, workload)
    plain = {n: v.domain if isinstance(v, When) else v for n, v in raw.items() if n in conditions}
    domains = {n: fitted(declared[n], as_domain(n, v)) for n, v in plain.items()}
    return Space({n: domains[n] for n in _ordered(name, conditions)}, [], {n: c for n, c in conditions.items() if c})


def _resolved(space: str, raw: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """The space with each domain that depends on another hyperparameter as that one is fixed."""

    def resolved(name: str, value: Any) -> Any:
        if isinstance(value, When):
            return value._replace(domain=resolved(name, value.domain))
        if isinstance(value, ByRounds):
            return value.of(workload.rounds)
        if not isinstance(value, Under):
            return value
        if value.other in raw and value.other not in workload.pinned:
            raise UserError(
                f"the range of {name} in space {space!r} depends on {value.other}, which is searched too; give {name} "
                f"one range, for instance {domain_text(next(iter(value.domains.values())))}"
            )
        return value.domains[workload.configuration({})[value.other]]

    return {name: resolved(name, value) for name, value in raw.items()}


def _combinations(name: str, raw: dict[str, Any]) -> list[Config]:
    if ranges := [n for n, v in raw.items() if isinstance(v, Domain | When)]:
        raise UserError(
            f"a space is a grid or has ranges, not both, but in {name!r} {', '.join(ranges)} "
            "are ranges beside grid_search; make them grid_search([...]) too, or use tune.choice"
        )
    lists = {n: _listed(n, name, v["grid_search"]) if _is_grid(v) else [v] for n, v in raw.items()}
    require_points(math.prod(map(len, lists.values())))
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _listed(name: str, space: str, values: Any) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not (items := list(values)):
        raise UserError(f"grid_search needs a list of values, but that of {name} in {space!r} is {shown(values)}")
    return items


def _conditions(space: str, raw: dict[str, Any], workload: Workload) -> dict[str, Condition]:
    """The condition of each domain that can exist, empty if it has none.  Conditions on fixed values are resolved."""
    declared, fixed, conditions = workload.hyperparameters(), workload.configuration({}), {}
    for name, value in raw.items():
        condition = {}
        for other, values in value.condition.items() if isinstance(value, When) else ():
            require_known(f"hyperparameter of {workload.name} in space {space!r}", [other], declared)
            condition[other] = tuple(map(declared[other].check, values))
        if met({o: v for o, v in condition.items() if o not in raw}, fixed):
            conditions[name] = {o: v for o, v in condition.items() if o in raw}
    return conditions


def _ordered(space: str, conditions: dict[str, Condition]) -> list[str]:
    out: list[str] = []
    while len(out) < len(conditions):
        ready = [n for n, c in conditions.items() if n not in out and all(o in out for o in c)]
        if not ready:
            raise UserError(
                f"a condition depends on hyperparameters of the space without a cycle, but in space {space!r} "
                f"{', '.join(n for n in conditions if n not in out)} depend on one another or on what never exists"
            )
        out += ready
    return out


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and "grid_search" in value
