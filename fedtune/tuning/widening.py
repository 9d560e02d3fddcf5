"""Wider ranges, by rule, where the best configuration of a search lies at an end of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ray.tune.search.sample import Categorical, Domain

from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import short
from fedtune.core.workload import Workload
from fedtune.tuning import ranges
from fedtune.tuning.domains import domain_text, range_of
from fedtune.tuning.space_types import Config, Space

NAMED = 4  # algorithms that a reason names


def touched(config: Config, space: Space) -> dict[str, str]:
    """The hyperparameters of a configuration that lie at an end of their range: lower, or upper."""
    ends = {n: ranges.edge(config.get(n), domain_text(domain)) for n, domain in space.domains.items() if n in config}
    return {name: end for name, end in ends.items() if end}


def wider(domain: Domain, hp: Hyperparameter, sides: frozenset[str]) -> Domain | None:
    """The range extended once on these sides, as far as is declared; None if it already goes so far."""
    if isinstance(domain, Categorical):
        return None
    range_ = ranges.wider(range_of(domain), hp, sides)
    return range_ and range_.domain()


class Widened(NamedTuple):
    """The wider ranges of the next searches, and the reasons."""

    ranges: dict[str, dict[str, Domain]]  # by algorithm
    reasons: list[str]  # a sentence for each end; also where a range cannot go on


def rule(
    spaces: Mapping[str, Space], workloads: Mapping[str, Workload], best: Mapping[str, Sequence[Config]]
) -> Widened:
    """An end that the best configuration of some search touches is extended for all algorithms that share it.

    Two algorithms share a hyperparameter of one name, declaration and range.  best: of each algorithm's searches.
    """
    each: dict[str, dict[str, Domain]] = {name: {} for name in spaces}
    reasons: list[str] = []
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[str, str, Any]]] = {}
    for name, config in ((name, config) for name, of in best.items() for config in of):
        for n, end in touched(config, spaces[name]).items():
            sharing = tuple(a for a in spaces if _shares(n, a, name, spaces, workloads))
            groups.setdefault((n, sharing), []).append((end, name, config[n]))
    for (n, sharing), touching in groups.items():
        domain, hp = spaces[sharing[0]].domains[n], workloads[sharing[0]].hyperparameters()[n]
        new = wider(domain, hp, frozenset(end for end, _, _ in touching))
        chose = ", ".join(f"{name} chose {short(value)}" for _, name, value in touching)
        if new is None:
            reasons.append(f"{n} stays at {domain_text(domain)}, all that is declared, though {chose}")
            continue
        algorithms = ", ".join(sharing) if len(sharing) <= NAMED else f"all {len(sharing)} that share it"
        reasons.append(f"{n}: {domain_text(domain)} becomes {domain_text(new)} for {algorithms}, because {chose}")
        for a in sharing:
            each[a][n] = new
    return Widened(each, reasons)


def _shares(n: str, one: str, other: str, spaces: Mapping[str, Space], workloads: Mapping[str, Workload]) -> bool:
    if n not in spaces[one].domains:
        return False
    texts = {domain_text(spaces[a].domains[n]) for a in (one, other)}
    return len(texts) == 1 and workloads[one].hyperparameters()[n] == workloads[other].hyperparameters()[n]
