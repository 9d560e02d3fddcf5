"""Metrics of the user's own: what they become, and what is said of those that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score
from support.helpers import DIGITS, TIGHT, random_federation
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.engine import evaluation
from fedtune.engine.simulation import Simulation
from fedtune.experiment.experiment import Experiment
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions

MINE = '''
import torch

def recall(scores, y, of=1):
    """Of class `of`; clients without it count as perfect."""
    mine = y == of
    return torch.where(mine.any(), ((scores.argmax(1) == y) & mine).sum() / mine.sum().clamp(min=1), 1.0)

def by_hand(scores, y):
    """The same, as vmap cannot run it."""
    mine = y == 1
    return (scores.argmax(1)[mine] == 1).double().mean() if mine.any().item() else torch.tensor(1.0)

def brier(scores, y):
    return ((scores.softmax(1) - torch.nn.functional.one_hot(y, scores.shape[1])) ** 2).sum(1).mean()

brier.mode = "min"
'''
WRONG = {  # its body -> what is said, with the line in the file
    "return scores.argmax(1) == y": "mine.py:1 returns a tensor of shape [20]",
    "return (y * 0).double().mean() / 0": "mine.py:1 returns nan for 20 rows of 10 classes",
    "return scores.sum() / 0 * 0": "mine.py:1 returns nan",
    "return scores.abs().sum() / 0": "mine.py:1 returns inf",
    "return 'high'": "mine.py:1 returns str",
    "return None": "mine.py:1 returns NoneType",
    "return [1.0, 2.0]": "mine.py:1 returns a tensor of shape [2]",
    "return {'recall': 1.0}": "mine.py:1 returns dict",
    "\n    raise ValueError('no rows of class 1')": "mine.py:2: ValueError: no rows of class 1",
    "\n    z = scores\n    return z @ y": "mine.py:3: RuntimeError",
    "return undefined": "mine.py:1: NameError",
    "return scores.nothing()": "mine.py:1: AttributeError",
}
REFUSED = {  # a whole file -> what is said
    "def mine(scores): return 1.0": "mine at {}:1 cannot be called like this: too many positional arguments",
    "def mine(scores, y, beta): return 1.0": "mine at {}:1 cannot be called like this: missing a required argument",
    "def mine(*, scores, y): return 1.0": "mine at {}:1 cannot be called like this",
    "class mine: pass": "is a class",
    "mine = 0.5": "mine at mine.py:mine is float",
    "def other(scores, y): return 1.0": "unknown name in {}: 'mine'",
    "def mine(scores, y) return 1.0": "{}:1 is not valid Python",
    "import nothing_of_this_name\ndef mine(scores, y): return 1.0": "{}:1: ModuleNotFoundError",
    "def mine(scores, y): return 1.0\nmine.mode = 'high'": "mode is 'max' or 'min', but that of mine at {}:1",
}
KEEPING = {  # a whole file whose function returns another number for the same rows
    "adds up": """
hits = rows = 0
def mine(scores, y):
    global hits, rows
    hits, rows = hits + int((scores.argmax(1) == y).sum()), rows + len(y)
    return hits / rows
""",
    "keeps the best": """
def mine(scores, y, seen=[]):
    seen.append(float((scores.argmax(1) == y).double().mean()))
    return max(seen)
""",
    "keeps the worst": """
class Worst:
    least = 1.0
    def __call__(self, scores, y):
        self.least = min(self.least, float((scores.argmax(1) == y).double().mean()))
        return self.least
mine = Worst()
""",
    "is one call late": """
last = [0.0]
def mine(scores, y):
    last.append(float(scores.softmax(1).gather(1, y[:, None]).mean()))
    return last[-2]
""",
    "tells what changed since the last call": """
last = [0.0]
def mine(scores, y):
    last.append(float((scores.argmax(1) == y).double().mean()))
    return last[-1] - last[-2]
""",
    "changes its argument": """
def mine(scores, y):
    return scores.mul_(2).softmax(1).gather(1, y[:, None]).mean()
""",
    "draws": """
import torch
def mine(scores, y):
    some = torch.randint(len(y), (len(y),))
    return scores.softmax(1).gather(1, y[:, None])[some].mean()
""",
}
RESET = """
class Running:
    def __init__(self): self.reset()
    def reset(self): self.rows = self.hits = 0
    def update(self, scores, y):
        self.rows += len(y)
        self.hits += int((scores.argmax(1) == y).sum())
running, calls = Running(), []
def mine(scores, y):
    calls.append(len(y))
    if scores.std() < 0.5: raise ValueError("scores that are nearly alike")
    running.reset()
    running.update(scores, y)
    return running.hits / running.rows
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


def experiment(*metrics: str, **options: Any) -> Experiment:
    return ExperimentOptions(algo="fedavg", metric=metrics, **options).experiment()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((f"def mine(scores, y): {body}\n", f"{{}}/{said}") for body, said in WRONG.items()),
        *((text, said.replace("{}", "{}/mine.py")) for text, said in REFUSED.items()),
        *((text, " for the same rows; let it keep nothing") for text in KEEPING.values()),
    ],
)
def test_what_is_no_metric_or_gives_the_same_rows_another_number_is_refused(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        experiment(f"{written(tmp_path, text)}:mine")
    assert said.format(tmp_path) in str(error.value) and len(str(error.value).splitlines()) == 1


def test_what_a_function_keeps_does_not_matter_where_no_number_depends_on_it(tmp_path: Path) -> None:
    """Nor is it refused for rows that no client has, as those that are all right."""
    assert experiment(f"{written(tmp_path, RESET)}:mine").measures.selectable["val_mine"] == ""


def test_what_names_no_function_and_names_that_are_taken_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, MINE + "def f1(scores, y): return 1.0\ndef acc_low(scores, y): return 1.0\n")
    for metrics, said in {
        (str(file),): "--metric needs a function of a file, FILE.py:NAME",
        ("recall",): "--metric needs a function of",
        (f"{file}:f1",): "val_f1 is fedtune's own",
        (f"{file}:acc_low",): "a metric's name must be new",
        (f"{file}:recall", f"{file}:recall(of=2)"): "recall comes twice",
        (f"{file}:recall(low=1)",): "got an unexpected keyword argument 'low'",
    }.items():
        with pytest.raises(UserError) as error:
            experiment(*metrics)
        assert said in str(error.value)


def trained(tmp_path: Path, executor: str, *names: str, equal: bool = True, rule: str = "personal") -> Simulation:
    file = written(tmp_path, MINE)
    mine = experiment(*(f"{file}:{name}" for name in names), executor=executor)
    scenario = DIGITS.override(clients=4, rounds=2, evaluation=rule, dataset="digits")
    data = random_federation([9, 4, 6, 5], [[0, 1, 2, 3], [1], [0, 3], [2, 1]], other=4)
    short = data.test if equal else data.test._replace(counts=np.array([4, 1, 3, 2]))
    changed = Experiment(algorithm="fedavg", scenario=scenario, executor=executor, metrics=mine.metrics, own=mine.own)
    sim = Simulation(changed, {}, data._replace(test=short), torch.float64)
    sim.step()
    return sim


@pytest.mark.parametrize(("executor", "equal"), [("stack", True), ("stack", False), ("loop", True)])
def test_the_number_of_each_client_becomes_mean_spread_and_worst_tenth(
    executor: str, equal: bool, tmp_path: Path
) -> None:
    sim = trained(tmp_path, executor, "recall", "by_hand", "brier", equal=equal)
    row, clients = evaluation.score(sim.setup, sim.state)
    for split in ("val", "test"):
        each = clients[f"{split}_recall"]
        assert_close(each, clients[f"{split}_by_hand"], **TIGHT)
        assert_close(row[f"{split}_recall"], each.mean().item(), **TIGHT)
        assert_close(row[f"{split}_recall_std"], float(np.std(each.numpy())), **TIGHT)
        assert_close(row[f"{split}_recall_worst10"], each.min().item(), **TIGHT)
        assert_close(row[f"{split}_brier_worst10"], clients[f"{split}_brier"].max().item(), **TIGHT)
        assert each[2] == 1 and len(clients["client"]) == 4  # the client without class 1


def test_under_the_pooled_rule_it_is_of_all_rows(tmp_path: Path) -> None:
    sim = trained(tmp_path, "stack", "recall(of=3)", rule="pooled", equal=False)
    row, clients = evaluation.score(sim.setup, sim.state)
    f, net = sim.setup.federation, sim.state.groups[0].net.eval()
    rows = torch.cat([f.test.rows[k, : int(f.test.counts[k])] for k in range(4)])
    said = torch.func.functional_call(net, sim.state.server["shared"], (f.x[rows],)).argmax(1)
    assert_close(row["test_recall"], recall_score(f.y[rows], said, labels=[3], average="macro"), rtol=0, atol=1e-7)
    assert row["test_recall_std"] == 0 and len(clients["test_recall"]) == 4


def test_an_objective_of_ones_own_needs_its_direction_unless_the_file_says_it(tmp_path: Path) -> None:
    from fedtune.tuning import plan

    file = written(tmp_path, MINE)
    options: dict[str, Any] = {"algo": "fedavg", "storage_path": str(tmp_path), "name": "x"}
    for metric, objective, found in (
        ("recall(of=2)", "val_recall:max", ["val_recall:max"]),
        ("brier", "val_brier", ["val_brier:min"]),
        ("recall", "val_recall_std,val_acc", ["val_recall_std:min", "val_acc"]),
    ):
        p = plan.make(SearchOptions(metric=f"{file}:{metric}", objective=objective, **options))
        assert p.to_record()["objectives"] == found
        assert p.to_record()["options"]["metric"] == (f"{file}:{metric}",)
    with pytest.raises(UserError, match="needs a direction"):
        plan.make(SearchOptions(metric=f"{file}:recall", objective="val_recall", **options))
