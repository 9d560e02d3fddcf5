"""Which rows of a data set may be given to clients, and a note about those that no client holds."""

from __future__ import annotations

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several
from fedtune.data import flwr_partitions, user_metadata
from fedtune.data.assignment import rounded_down
from fedtune.data.dataset import Dataset
from fedtune.data.federation import Owners
from fedtune.experiment.scenario import USES, Scenario

OF_ANY = ("skip_classes", "keep_classes", "min_rows", "thinning")  # fields that leave rows out under any partition
DRAWS = ("ways-shots", "fedgen")  # partitions that may leave rows out under any fields


def rows_in_play(data: Dataset, scenario: Scenario) -> np.ndarray:
    """The rows of the classes in use, from owners with enough rows, ascending; UserError if no owner has enough."""
    return kept_rows(data, scenario.skip_classes, scenario.keep_classes, scenario.min_rows)


def kept_rows(data: Dataset, skip: int, keep: int, min_rows: int) -> np.ndarray:
    """As `rows_in_play`.  skip, keep: classes (keep 0: all that are not skipped).  min_rows: of an owner."""
    rows = np.flatnonzero((data.y >= skip) & (data.y < skip + (keep or data.classes)))  # usually all
    if not min_rows or data.owner is None:
        return rows
    size = np.bincount(data.owner[rows[rows < data.train_rows]], minlength=int(data.owner.max()) + 1)
    if size.max() < min_rows:
        most = several(int(size.max()), "row")
        raise UserError(f"min_rows {min_rows} leaves no owner, because none has more than {most}: lower it")
    rows_left: np.ndarray = rows[size[data.owner[rows]] >= min_rows]
    return rows_left


def left_out(data: Dataset, scenario: Scenario, rows: np.ndarray) -> str:
    """A note about all other rows: how many, which owners and classes are missing, and why; "" if there are none."""
    lost = len(data.y) - len(np.unique(rows))
    if not lost:
        return ""
    groups = []
    for thing, values, names in (("owner", data.owner, data.owner_names), ("class", data.y, data.class_names)):
        missing = [] if values is None else np.setdiff1d(values, values[rows]).tolist()
        if missing:
            groups.append(f"{several(len(missing), thing)} ({few([names[i] if names else str(i) for i in missing])})")
    out = f"{lost} of {len(data.y)} rows {'is' if lost == 1 else 'are'} left out"
    return out + (f", all those of {' and '.join(groups)}" if groups else "") + f": {_causes(data, scenario)}"


def _causes(data: Dataset, s: Scenario) -> str:
    """The options that leave rows out, with their values."""
    causes = [name for name in OF_ANY if getattr(s, name)]
    if user_metadata.is_partition(s.partition) or flwr_partitions.is_named(s.partition):
        causes.append("partition")
    elif s.partition in DRAWS:
        causes += ["partition", "clients", *USES[s.partition]]
    elif s.partition == "natural" and data.owner is not None:
        people = len(np.unique(data.owner[rows_in_play(data, s)]))
        causes += ["share"] * (s.share < 1)
        causes += ["clients", "owners"] * (s.clients * s.owners < int(rounded_down(s.share * people)))
    return ", ".join(f"{name.replace('_', '-')} {getattr(s, name)}" for name in causes)


def last_group(s: Scenario, owners: Owners) -> str:
    """A note if the last client holds fewer owners than requested; otherwise ""."""
    if s.partition != "natural" or not owners or len(owners[-1]) == s.owners:
        return ""
    owners_text = several(len(owners[-1]), "owner")
    if len(owners) == 1:
        return f"the only client holds {owners_text}, because there are fewer than {s.owners}"
    return f"the last of {len(owners)} clients holds {owners_text}, the others {s.owners}"
