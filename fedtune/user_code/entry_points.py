"""Plugins: installed packages add names by the entry points `fedtune.algorithms`, `fedtune.models`, `fedtune.datasets`.

    [project.entry-points."fedtune.algorithms"]
    fednorm = "mypackage.fednorm:FedNorm"

Listing the names does not import the packages.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedtune.core.errors import UserError
from fedtune.user_code.user_errors import describe


def names(group: str) -> list[str]:
    """The names that packages add to a group: algorithms, models or datasets."""
    return sorted(_points(group))


def find(group: str, name: str, kind: str, known: Collection[str] = ()) -> Any:
    """Load what a package offers under this name; None if none does.

    kind: what it is, for error messages.  known: fedtune's own names.  UserError if two offer the name, or it fails to
    load.
    """
    points = _points(group).get(name, ())
    owners = [*(["fedtune"] if name in known else []), *(p.dist.name if p.dist else p.value for p in points)]
    if points and len(owners) > 1:
        raise UserError(
            f"a name must be one {kind}'s, but {name!r} is offered by {' and '.join(owners)}; rename or uninstall one"
        )
    if not points:
        return None
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:  # whatever the package raises
        raise UserError(f"the {kind} {name!r} of {owners[0]} cannot be loaded: {describe(error)}") from error


@cache
def _points(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=f"fedtune.{group}"):
        found[point.name] = (*(p for p in found.get(point.name, ()) if p.value != point.value), point)
    return found
