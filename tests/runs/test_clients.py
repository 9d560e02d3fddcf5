"""The table of clients: of every run on fresh seeds the last and the best round, client by client."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from support.helpers import DIGITS, random_federation
from support.outcomes import outcome_of

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.objectives import Objective, parse
from fedtune.engine.built_in import ENGINE
from fedtune.experiment.experiment import Experiment
from fedtune.runs import frames, tables
from fedtune.runs.files import RunFiles
from fedtune.runs.folder import StudyFolder
from fedtune.studies import ray_tasks


def outcome(objective: Objective | None, rounds: int = 4, some: int = 0, limit: float = 9) -> ray_tasks.Outcome:
    """A run of four clients of unlike sizes."""
    scenario = DIGITS.override(clients=4, rounds=rounds, dataset="digits", eval_clients=some)
    data = random_federation([9, 4, 6, 5], other=5)
    threads = torch.get_num_threads()
    try:
        experiment = Experiment(algorithm="fedavg", scenario=scenario, trainer=ENGINE)
        return outcome_of(experiment, {"lr": 0.3}, data, Budget("rounds", limit), objective)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("objective", ["val_acc", "val_loss", "val_acc_lowest"])
def test_the_clients_of_the_last_and_the_best_round_have_the_means_of_those_rounds(objective: str) -> None:
    first = parse(objective)[0]
    found = outcome(first)
    table = tables.clients_frame([({"configuration": "best", "seed": 3}, found.clients)])
    assert list(table)[:4] == ["configuration", "seed", "scored", "round"] and len(table) == 2 * 4
    value = pd.Series([first.sign * row[objective] for row in found.rounds])
    for scored, t in (("last", 4), ("best", int(value.idxmax()) + 1)):
        mine, row = table[table["scored"] == scored], found.rounds[t - 1]
        assert set(mine["round"]) == {t} and sorted(mine["client"]) == [0, 1, 2, 3]
        assert mine["test_acc"].mean() == pytest.approx(row["test_acc"], abs=1e-12)
        assert mine["val_acc"].min() == row["val_acc_lowest"]
        right = (mine["test_acc"] * mine["test_rows"]).sum()
        assert right / mine["test_rows"].sum() == pytest.approx(row["test_acc_rows"], abs=1e-12)


def test_only_scored_clients_are_in_the_table_and_none_where_nobody_asks() -> None:
    assert outcome(None, rounds=1).clients == []
    found = outcome(parse("val_acc")[0], some=2, limit=2)
    assert len(found.rounds) == 2 and [len(columns["client"]) for columns in found.clients] == [2, 2]


def test_a_folder_gives_its_clients_with_the_documented_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no clients.parquet: it is written when a search's final check"):
        StudyFolder(tmp_path).clients  # noqa: B018 - reading it is what fails
    whose = {"algorithm": "fedavg", "configuration": "best", "seed": 1}
    found = [
        {
            "scored": "last",
            "round": 2,
            "owner": ["", ""],
            "client": [0, 1],
            "val_rows": [3, 4],
            "val_acc": [0.5, 1.0],
            "test_rows": [3, 3],
            "test_acc": [0.25, 0.75],
            "test_brier": [0.1, 0.2],
        }
    ]
    tables.clients_frame([(whose, found)]).to_parquet(RunFiles(tmp_path).clients_file, index=False)
    both = frames.clients(tmp_path, tmp_path)
    assert [*both] == [*tables.CLIENTS, "test_brier"] and len(both) == 4
    assert {n: str(both[n].dtype) for n in tables.CLIENTS} == tables.CLIENTS
    pd.testing.assert_frame_equal(StudyFolder(tmp_path).clients, both.iloc[:2])
    assert tables.clients_frame([(whose, [])]).empty
