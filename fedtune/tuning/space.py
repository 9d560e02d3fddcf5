"""Search spaces: which hyperparameters, over which values.  The algorithm's file declares how far each may go.

A space is a dict of Ray Tune's own domains, `{"lam": tune.loguniform(0.1, 10), …}`, or a grid: a list of
configurations, or a dict whose values are all `tune.grid_search([...])`.  `when(tune.uniform(0, 0.9), optimizer="sgd")`
is a domain that exists only where another hyperparameter has that value.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ray.tune.search.sample import Categorical, Domain

from fedtune.core import hyper
from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Hyperparameter, Range
from fedtune.core.terminal import say
from fedtune.core.workload import Workload
from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import shared
from fedtune.tuning.domains import fitted, nearest
from fedtune.tuning.domains import varied_text as varied_text
from fedtune.tuning.shared import with_shared as with_shared
from fedtune.tuning.space_check import checked
from fedtune.tuning.space_types import Config, Space, met, when
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


def load(name: str, workload: Workload) -> Space:
    """A space by name, or from a file: `path/to/file.py` (its SPACE or default) or `path/to/file.py:name`.

    Fixed hyperparameters are not searched.  UserError if it is unknown, empty, contradictory or out of range.
    """
    if file := file_of(name):
        module = _file(file[0])
        spaces, member = registry.members(module), file[1][1:] or ("SPACE" if hasattr(module, "SPACE") else "default")
    else:
        spaces, member = {"default": derived(workload)} | workload.spaces(), name
    if member not in spaces:
        raise unknown(f"search space of {workload.name}", member, spaces)
    return checked(name, spaces[member], workload)


def varied(space: Space, asked: Sequence[str], workload: Workload) -> Space:
    """The space with these hyperparameters too, or over these ranges: `lr=0.001..0.3 log`, `momentum`.

    A name alone is searched over its declared range.  UserError for what is unknown, fixed or not declared.
    """
    if asked and space.is_grid:
        raise UserError(f"--vary is for a space of ranges, but this space is a grid; got --vary {asked[0]!r}")
    domains, declared = dict(space.domains), workload.hyperparameters()
    names = [named(text) for text in asked]
    for name, text in zip(names, asked, strict=True):
        if names.count(name) > 1:
            raise UserError(f"--vary names each hyperparameter once, but {name} comes several times")
        if name not in declared:
            kind = f"hyperparameter of {workload.name}"
            raise unknown(kind, name, declared, f"fedtune list {workload.name}")
        if name in workload.pinned:
            raise UserError(f"--vary takes what is not fixed, but {name} is in --set; leave it out")
        _, given, written = text.partition("=")
        domains[name] = _range(declared[name], written if given else None, name in domains)
    return space._replace(domains=domains)


def named(text: str) -> str:
    """The hyperparameter that a text of --vary names."""
    return text.partition("=")[0]


def _range(hp: Hyperparameter, written: str | None, searched: bool) -> Domain:
    """A hyperparameter's range as it is written, or without that its declared one.

    searched: whether the space has it already.
    """
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


def _file(path: Path) -> ModuleType:
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
