"""The table of clients: each client's results in the fresh-seed runs at the end of a search or a comparison.

For every such run it holds all scored clients in the last round and in the round of the best objective.  Trials do not
store results of single clients: there are too many, and the best configuration is trained again anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError
from fedtune.runs import reading
from fedtune.runs.files import RunFiles

if TYPE_CHECKING:  # workers make columns only, and need not spend half a second on importing pandas
    import pandas as pd

CLIENTS: dict[str, str] = {  # column -> dtype; your own metrics' val_NAME and test_NAME follow
    "run": "str",  # the folder's name
    "algorithm": "str",
    "configuration": "str",  # best or default; in a comparison default, top 1, …
    "seed": "int64",
    "scored": "str",  # last, or best: the round of the best objective
    "round": "int64",
    "client": "int64",
    "owner": "str",  # the owner of its rows, by name; empty if the data have no owners
    "val_rows": "int64",
    "val_acc": "float64",
    "test_rows": "int64",
    "test_acc": "float64",
}

KINDS = {name: reading.TEXT if kind == "str" else reading.NUMBER for name, kind in CLIENTS.items()}


def table(runs: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]]) -> pd.DataFrame:
    """A row per run, scored round and client.

    runs: the columns that identify a run, and its clients from `columns`.
    """
    import pandas as pd

    parts = [pd.DataFrame(columns).assign(**run) for run, scored in runs for columns in scored]
    if not parts:
        return pd.DataFrame(columns=[name for name in CLIENTS if name != "run"])
    all_rows = pd.concat(parts, ignore_index=True)
    first = [name for name in CLIENTS if name in all_rows]
    return all_rows[first + [name for name in all_rows if name not in first]]


def columns(scored: str, round: int, clients: Mapping[str, Any], owner: Callable[[int], str]) -> dict[str, Any]:
    """The clients of one round as plain lists.

    scored: last or best.  clients: tensors from an evaluation.  owner: returns a client's owner by name.
    """
    by_name = {name: values.tolist() for name, values in clients.items()}
    return {"scored": scored, "round": round, "owner": [owner(k) for k in by_name["client"]]} | by_name


def load(*runs: str | Path) -> pd.DataFrame:
    """The clients of these runs; UserError for a folder that has no table of them."""
    import pandas as pd

    tables = []
    for run in map(Path, runs):
        file = RunFiles(run).clients_file
        if not file.exists():
            raise UserError(
                f"{run} has no {file.name}: it is written when a search's final check (--final-seeds) or a "
                "comparison has ended"
            )
        tables.append(reading.table(file, kinds=KINDS).assign(run=run.absolute().name))
    if not tables:
        raise UserError("there must be at least one study's folder, but none was given")
    all_rows = pd.concat(tables, ignore_index=True)
    all_rows = all_rows.reindex(columns=[*CLIENTS, *(c for c in all_rows if c not in CLIENTS)])
    return all_rows.fillna({n: "" for n, kind in CLIENTS.items() if kind == "str"}).astype(CLIENTS)
