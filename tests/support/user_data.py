"""Data of one's own, small: arrays of every kind, files of them, and the scenario that they bring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedtune.core.errors import UserError
from fedtune.data import datasets, user_data, user_partition
from fedtune.data.dataset import Dataset
from fedtune.data.federation import Federation
from fedtune.experiment import partitioning, user_scenario
from fedtune.experiment.scenario import Scenario
from fedtune.user_code import user_files


def wards(rows: int = 240, hospitals: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """A table of sensors: five features of different scales, three classes, whose ward each row is."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    x = rng.normal(size=(rows, 5)) + y[:, None]
    return {
        "x": x * [1, 10, 100, 0.1, 1] + [0, 50, 1000, 0, 7],
        "y": y,
        "owner": np.repeat(np.arange(hospitals), rows // hospitals),
    }


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def pictures(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 12, **sizes: tuple[int, int]) -> Path:
    """A folder of class folders; picture i of class c is of the colour (i, 10 c, 0).

    sizes: (width, height) of a class's.
    """
    for c, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            Image.new("RGB", sizes.get(name, (8, 8)), (i, 10 * c, 0)).save(folder / name / f"{i:02d}.png")
    return folder


def taken(dataset: str | Path, partition: str | Path = "", **fields: Any) -> Scenario:
    """The scenario of a data set and perhaps a partition of one's own, as a command makes it."""
    given: dict[str, Any] = dict(fields) | {"dataset": str(dataset)}
    if user_files.is_reference(str(dataset), datasets.names()):
        given["dataset"], files = user_files.take(str(dataset))
        user_data.described(given["dataset"], files)
    if partition and str(partition).endswith(".npz"):
        given["partition"], files = user_files.take(str(partition))
        user_partition.described(given["partition"], files)
    elif partition:
        given["partition"] = partition
    return Scenario(**(user_scenario.defaults(given) | given))


def made(scenario: Scenario, seed: int = 0) -> Federation:
    return partitioning.make(scenario, seed)


def loaded(dataset: str | Path, partition: str = "iid", **fields: Any) -> Dataset:
    """A data set as a command reads it."""
    return datasets.load(taken(dataset, partition, **({"clients": 2} | fields)).dataset)


def refused(message: str, dataset: str | Path, partition: str | Path = "iid", **fields: Any) -> None:
    """A data set or a partition of it is refused in a line with these words."""
    with pytest.raises((UserError, FileNotFoundError), match=message) as error:
        made(taken(dataset, partition, **({"clients": 2} if partition == "iid" else {}), **fields))
    assert "\n" not in str(error.value)
