"""Removes hyperparameters without an effect from a search's space, each with a line that says why."""

from __future__ import annotations

from collections.abc import Collection

from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.core.workload import Workload
from fedtune.tuning.domains import ends
from fedtune.tuning.space_types import Config, Space, met


def reasons(space: Space, workload: Workload) -> dict[str, str]:
    """Hyperparameters of a space that can have no effect anywhere in it, each with the reason.

    They have none whatever value any single other hyperparameter takes.
    """
    configs: list[Config] = [{}, *space.points]
    configs += [{n: v} for n, domain in space.domains.items() for v in ends(n, domain)]
    always: dict[str, str] | None = None
    for config in configs:
        try:
            idle = workload.idle(config)
        except UserError:  # incompatible values; a trial will say so
            continue
        always = idle if always is None else {n: why for n, why in always.items() if n in idle}
    return {n: why for n, why in (always or {}).items() if n in space.names}


def without(space: Space, workload: Workload, recorded: Collection[str] = ()) -> Space:
    """The space without hyperparameters that have no effect in it; those in `recorded`
    stay, as a record lists them as searched.

    Points of a grid stay as they are; UserError if nothing is left.
    """
    idle = {n: why for n, why in reasons(space, workload).items() if n not in recorded}
    for name, why in idle.items():
        say(
            f"{'warning' if space.is_grid else 'note'}: {name} has no effect here"
            f"{'' if space.is_grid else ' and is not searched'}: {why}"
        )
    if space.is_grid or not idle:
        return space
    fixed, domains, conditions = workload.configuration({}), {}, {}
    for name, domain in space.domains.items():
        condition = space.conditions.get(name, {})
        if name not in idle and met({n: v for n, v in condition.items() if n in idle}, fixed):
            domains[name] = domain
            if still := {n: v for n, v in condition.items() if n not in idle}:
                conditions[name] = still
    if not domains:
        raise UserError(f"a search needs something to vary, but no searched hyperparameter has an effect: {why}")
    return space._replace(domains=domains, conditions=conditions)
