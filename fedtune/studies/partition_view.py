"""Which client holds which data, as a table: what `fedtune partition` prints and draws."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from fedtune.core.terminal import say, say_table, several
from fedtune.data import datasets, user_partition
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import USES, Scenario

SPLITS = ("train", "val", "test")
SHOWN = 20  # clients of the printed table
WIDTH = 32  # characters of an owner's name in that table


def show(
    scenario: Scenario, seed: int, data_dir: str | None, download: bool, save: Path | None
) -> tuple[pd.DataFrame, np.ndarray | None]:
    """Partition the data, print the result, and save which client holds which rows if asked to.

    Returns what `counts` gives; and if features are shifted, an example image of each client.
    """
    data = datasets.load(scenario.dataset, data_dir, download)
    made = partitioning.partition(data, scenario, seed)
    partitioning.report(data, scenario, seed)
    table = counts(made, data, scenario.skip_classes)
    rows = printed(table)
    which = f": the first {SHOWN} clients" if table["client"].nunique() > SHOWN else ""
    say_table(f"who holds what{which}", rows, rows.values.tolist(), left=("owner", "most of"))
    say(summary(table))
    for note in data.notes:
        say(f"note: {note}")
    if save:
        user_partition.write(save, partitioning.rows_of_clients(data, scenario, seed))
        say(f"saved: {save}; --partition {save} uses it again")
    return table, looks(made) if scenario.rotation or scenario.feature_noise else None


def title(scenario: Scenario) -> str:
    """The partition in words: its kind, its data set, and fields that differ from a scenario's defaults."""
    base, names = Scenario(), [f.name for f in fields(Scenario)]
    ignored = {n for uses in USES.values() for n in uses} - {*USES.get(scenario.partition, ())}
    of_data = [n for n in names[names.index("partition") + 1 : names.index("rounds")] if n not in ignored]
    own = [f"{n} {getattr(scenario, n)}" for n in of_data if getattr(scenario, n) != getattr(base, n)]
    return ", ".join([f"Partition {scenario.partition} of {scenario.dataset}", *own])


def looks(f: Federation) -> np.ndarray | None:
    """A training image of every client, of one class as far as they hold it: [K, height, width] of the first channel.

    None where rows are no images.
    """
    if len(f.shape) != 3:
        return None
    own = [f.train.rows[k, : f.train.counts[k]] for k in range(f.clients)]
    common = np.sum([np.bincount(f.y[rows], minlength=f.classes) > 0 for rows in own], 0).argmax()
    return np.asarray(f.x[[rows[(f.y[rows] != common).argmin()] for rows in own], 0])


def counts(f: Federation, data: Dataset, first: int = 0) -> pd.DataFrame:
    """Rows of every client, class and split, as the clients see them: columns client, owner, class, split, rows.

    owner: whose rows a client holds; "" where it has no name.
    Classes are the data set's, by name where it has names; those that nobody holds are left out.  first: the class that
    is numbered 0 in the federation.
    """
    names, held = data.class_names or tuple(map(str, range(data.classes))), []
    for split in SPLITS:
        table = getattr(f, split)
        real = np.arange(table.rows.shape[1]) < table.counts[:, None]
        client = np.repeat(np.arange(f.clients), table.counts)
        held.append(pd.DataFrame({"split": split, "class": f.y[table.rows[real]], "client": client}))
    every = {"split": SPLITS, "class": range(data.classes - first), "client": range(f.clients)}
    index = pd.MultiIndex.from_product(every.values(), names=every)
    rows = pd.concat(held).value_counts().reindex(index, fill_value=0).reset_index(name="rows")
    rows = rows[rows.groupby("class")["rows"].transform("sum") > 0].reset_index(drop=True)
    owner = rows["client"].map({k: f.owner(k) for k in range(f.clients)})
    rows = rows.assign(owner=owner, **{"class": rows["class"].map(lambda c: names[first + c])})
    return rows[["client", "owner", "class", "split", "rows"]]


def label_skew(table: pd.DataFrame) -> pd.Series:
    """For each client, half the absolute difference between its class shares and those of all clients together.

    0: equal shares; towards 1: classes that no other client holds.  This is the total variation distance, half
    the earth mover's distance of Zhao et al. 2018, arXiv:1806.00582.
    """
    rows = table.pivot_table(index="client", columns="class", values="rows", aggfunc="sum")
    own, together = rows.div(rows.sum(axis=1), axis=0), rows.sum() / rows.to_numpy().sum()
    return own.sub(together).abs().sum(axis=1) / 2


def summary(table: pd.DataFrame) -> str:
    """Sizes, classes and skew in a line."""
    rows = table.groupby("client")["rows"].sum()
    held = table.groupby(["client", "class"])["rows"].sum().gt(0).groupby("client").sum()
    of = ((len(rows), "client"), (rows.sum(), "row"), (table["class"].nunique(), "class"))
    return (
        f"{', '.join(several(n, what) for n, what in of)}; rows a client {rows.min()} to {rows.max()} (median "
        f"{rows.median():g}), classes a client {held.min()} to {held.max()} (mean {held.mean():.1f}); label skew "
        f"{label_skew(table).mean():.2f} (0: class shares as of all together; towards 1: classes that no other has)"
    )


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Rows, classes and skew of each client, as text; of many, the first ones."""
    skew, rows = label_skew(table), []
    for client, own in table[table["client"] < SHOWN].groupby("client"):
        by_class = own.groupby("class", sort=False)["rows"].sum()
        splits = own.groupby("split")["rows"].sum()
        most = f"{by_class.idxmax()} ({by_class.max() / by_class.sum():.0%})"
        cells = {"client": client, "owner": own["owner"].iloc[0][:WIDTH]} | {s: splits[s] for s in SPLITS}
        rows.append(cells | {"classes": (by_class > 0).sum(), "most of": most, "label skew": f"{skew[client]:.2f}"})
    frame = pd.DataFrame(rows).astype(str)
    return frame if (frame["owner"] != "").any() else frame.drop(columns="owner")
