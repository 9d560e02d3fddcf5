"""The measured tables: what is averaged over what."""

from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from analysis import fedpa_table2, fedsa_device, tables
from fedtune.core.errors import Diverged
from fedtune.federated.simulation import Simulation


def test_table2_takes_the_last_round_and_names_the_papers_rule_apart() -> None:
    rows = [
        {"scenario": "fedpa-fmnist-a0.3", "algorithm": algo, "preset": "as_text", "seed": seed, "round": t,
         "val_acc": 0.5, "test_acc": 0.1 * t + 0.02 * seed, "comm_mb": t, "seconds": 1.0}
        for algo in ("fedpa", "fedavg") for seed in (0, 1) for t in (3, 7, 1, 2, 4, 5, 6)
    ]  # fmt: skip
    table = fedpa_table2.summary(pd.DataFrame(rows))
    assert list(table.algorithm) == ["fedavg", "fedpa"] and list(table.paper) == [84.36, 85.52]
    assert list(table.seeds) == [2, 2] and list(table.rounds) == [7, 7]
    assert table.test.tolist() == pytest.approx([71, 71]) and table.test_std.tolist() == pytest.approx([2**0.5] * 2)
    assert table.best_five.tolist() == pytest.approx([51, 51])  # rounds 3 to 7
    assert "| fedpa | as_text | 71.00 ± 1.41 | 51.00 | 50.00 | 7 | 85.52 |" in fedpa_table2.text(table)


def test_a_run_is_played_once_and_a_diverged_one_leaves_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tables.experiment(algo, "fedsa-digits-silo", seed) for algo in ("local", "fedgenp") for seed in (0, 1)]
    rows = tables.play_all(runs, 3, tmp_path, None, every=2)
    assert len(list(tmp_path.iterdir())) == 4
    assert rows[rows.algorithm == "local"]["round"].tolist() == [2, 3] * 2
    assert rows[rows.algorithm == "fedgenp"]["round"].tolist() == [1, 2, 3] * 2  # its stop rule wants to know
    whole = tables.play(*tables.experiment("local", "fedsa-digits-silo", 1)[:1], {}, 3, None)
    assert rows[(rows.algorithm == "local") & (rows.seed == 1)].test_acc.tolist() == whole.test_acc.tolist()[1:]

    def diverge(self: Simulation) -> None:
        raise Diverged("")

    monkeypatch.setattr(Simulation, "step", diverge)
    again = tables.play_all(runs, 3, tmp_path, None, every=2)
    pd.testing.assert_frame_equal(again, rows)
    lost = tables.play(runs[0][0], {"algorithm": "local"}, 3, None, every=3)
    assert lost["round"].tolist() == [3] and lost.test_acc.isna().all()


def test_the_device_table_plans_what_fits_and_counts_what_ended() -> None:
    runs = fedsa_device.planned(["fedavg", "local", "fedgen"], list(fedsa_device.SCENARIOS), [0, 2], 7)
    assert [(e.algorithm, n.endswith("htmini3"), e.seed, dict(e.pinned)) for e, n in runs][:5] == [
        ("fedavg", False, 0, {}), ("local", False, 0, {}), ("fedgen", False, 0, {}), ("local", True, 0, {}),
        ("fedgen", True, 0, {"averages": "head"}),
    ]  # fmt: skip
    assert len(runs) == 10 and all(e.scenario.rounds == 7 for e, _ in runs)
    rows = [
        {"scenario": "s", "algorithm": algo, "seed": seed, "round": t, "val_acc": 0.5, "comm_mb": t,
         "test_acc": 0.1 * t + 0.02 * seed, "test_acc_std": 0.2, "test_acc_all": 0.3}
        for algo in ("fedavg", "fedsa") for seed in (0, 1) for t in (2, 5) if (algo, seed, t) != ("fedsa", 1, 5)
    ]  # fmt: skip
    lost = {"scenario": "s", "algorithm": "fedsa", "seed": 1, "round": 4}
    table = fedsa_device.summary(pd.DataFrame([*rows, lost]))
    assert table.algorithm.tolist() == ["fedavg", "fedsa"] and table.seeds.tolist() == [2, 1]
    assert table.test.tolist() == pytest.approx([51, 50])
    assert "| fedavg | 51.00 ± 1.41 | 20.0 | 30.00 | 50.00 | 5.0 | 2 |" in fedsa_device.text(table)


@pytest.mark.parametrize("command", [fedpa_table2, fedsa_device])
def test_the_table_in_the_repository_is_what_its_command_makes_of_its_figures(command: ModuleType) -> None:
    results = Path(command.__file__ or "").parent / "results"
    name = command.__name__.split(".")[1].replace("_", "-")
    assert (results / f"{name}.md").read_text() == command.text(pd.read_csv(results / f"{name}.csv"))


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (fedpa_table2, "--seeds x", "--seeds takes whole numbers with commas, but got 'x'"),
        (fedpa_table2, "--algos fedgenp", "--algos takes the table's fedavg"),
        (fedsa_device, "--seeds 0,", "--seeds takes whole numbers"),
        (fedsa_device, "--algos fedavgg", "unknown algorithm 'fedavgg': did you mean 'fedavg'"),
        (fedsa_device, "--scenarios digits", "unknown scenario 'digits'"),
    ],
)
def test_bad_input_of_a_table_is_one_line(
    command: ModuleType, arguments: str, message: str, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    assert command.main([*arguments.split(), "--work", str(tmp_path / "work")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "work").exists()
