"""What clients tell of classes: of which rows and which model, how the server averages it, and what it keeps."""

from typing import Any

import pytest
import torch
from support.by_hand import batches, first_client, sgd_step
from support.helpers import DIGITS, EARLY, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, randn
from torch import nn
from torch.testing import assert_close

from fedtune.core.trees import tree_map
from fedtune.engine import engine
from fedtune.experiment.algorithm import Data, Ragged, Task
from fedtune.experiment.registry import find
from fedtune.experiment.scenario import Scenario

C, D = 4, 12
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
TOLD = {  # the entry of an upload -> what it tells of a row with features z
    "protos": lambda net, z: z,
    "features": lambda net, z: z,
    "logits": lambda net, z: net.head(z),
    "soft": lambda net, z: (net.head(z) / 0.5).softmax(1),
}
PULL = {"lam_m": 0.0, "lam_cc": 0.0, "lam_r": 2.0}  # of FedSA, to its anchors
MET = [
    ("fedpa", {"prototypes": "running", "lam_ge": 0.0, "gen_hidden": 16}, ("protos",)),
    ("feddistill", {"knowledge": "running"}, ("logits",)),
    ("fedhkd", {"knowledge": "running", "noise": 0.0, "least_share": 0.3}, ("features", "soft")),
    ("fedsa", {"prototypes": "running"} | PULL, ("protos",)),
    ("fedsa", {"prototypes": "final"} | PULL, ("protos",)),  # of its trained model
]


def table(t: torch.Tensor | Ragged) -> torch.Tensor:
    return t.values if isinstance(t, Ragged) else t


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize(("steps", "batch"), [(2, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize(("name", "config", "entries"), MET)
def test_running_knowledge_is_of_the_batches_drawn_with_the_model_as_it_was(
    name: str, config: dict, entries: tuple, steps: int, batch: int, executor: str
) -> None:
    data, work = random_federation([8, 12], [[0, 1, 2, 2], [0, 1, 1]]), {"lr": 0.1, "momentum": 0.0}
    sim = simulate(name, DIGITS, data, executor=executor, local_steps=steps, batch=batch, **work, **config)
    seen, anchors, unmet = record_uploads(sim), sim.state.server.get("anchors"), 0
    nets = [client_net(sim, k) for k in range(2)]
    play(sim, 1)  # nobody knows anything yet
    for k, net in enumerate(nets):
        told, met = [], []
        for x, y in batches(sim, 1, k):
            z = net.body(x)
            told.append([TOLD[n](net, z).detach() for n in entries]), met.append(y)
            pull = 0 if anchors is None else 2 * (z - anchors[y]).square().mean()
            sgd_step(nn.functional.cross_entropy(net.head(z), y) + pull, net, 0.1)
        x, y = own_rows(sim, k)
        if "final" in config.values():
            told, met = [[net.body(x).detach()]], [y]
        rows, enough = torch.cat(met), y.bincount(minlength=C) >= config.get("least_share", 0) * len(y)
        there = [c for c in rows.unique().tolist() if enough[c]]
        for n, each in zip(entries, zip(*told, strict=True), strict=True):
            values, present = (t[k] for t in seen[0][n])
            assert present.nonzero()[:, 0].tolist() == there
            for c in there:
                assert_close(values[c], torch.cat(each)[rows == c].mean(0), **TIGHT)
        for c in there if name != "feddistill" else ():
            assert table(seen[0]["counts"])[k, c] == (y == c).sum()  # all its rows, not those met
        unmet += len(y.unique()) - len(rows.unique())
    assert batch > 1 or (unmet > 0) == ("running" in config.values())


@pytest.mark.parametrize(("name", "entry"), [("feddistill", "logits"), ("fedsa", "protos"), ("fedproto", "protos")])
def test_the_upload_leaves_padding_out(name: str, entry: str) -> None:
    m, x, _ = first_client(simulate(name, DIGITS, random_federation([9])))
    y, mask = torch.tensor([0, 0, 1, 2, 1, 1, 3, 3, 0]), torch.arange(9) < 6
    nothing = Ragged(randn(C, D), torch.zeros(C, dtype=torch.bool))
    down = {"targets": nothing, "protos": nothing, "anchors": randn(C, D)}
    up = find(name)(**({"prototypes": "final"} if name == "fedsa" else {})).upload(m, Data(x, y, mask, {}), down)
    values, present = up[entry]
    told = TOLD[entry](m, m.body(x))
    assert present.tolist() == [True, True, True, False]
    for c, rows in enumerate([[0, 1], [2, 4, 5], [3]]):
        assert_close(values[c], told[rows].mean(0), **TIGHT)
    assert name == "feddistill" or up["counts"].values.tolist() == [2, 3, 1, 0]


@pytest.mark.parametrize(("name", "model"), [("fedproto", "mlp"), ("fedpa", "fedgen-cnn")])
def test_prototypes_are_means_over_all_rows_of_the_trained_models(name: str, model: str) -> None:
    data = random_federation([8, 12], [[0, 1, 2, 2], [0, 1]])
    sim = simulate(name, Scenario(model=model, features=D), data, **EARLY.get(name, {}))
    seen, z, y = record_uploads(sim), [], []
    play(sim, 2)
    for k in range(2):
        net, (x, label) = client_net(sim, k).eval(), own_rows(sim, k)
        net.load_state_dict(net.state_dict() | {n: t[k] for n, t in seen[1].get("shared", {}).items()})
        z.append(net.body(x).detach()), y.append(label)
    z, y, got = torch.cat(z), torch.cat(y), sim.state.server["protos"]
    assert got.present.tolist() == [True, True, True, False]
    for c in range(3):
        assert_close(got.values[c], z[y == c].mean(0), **TIGHT)
    assert table(seen[1]["counts"]).tolist() == [[2, 2, 4, 0], [6, 6, 0, 0]]


@pytest.mark.parametrize("name", ["fedproto", "fedsa"])
def test_prototypes_weigh_by_rows_or_clients_and_unseen_ones_are_kept(name: str) -> None:
    p, counts = randn(3, C, D), torch.tensor([[9, 1, 0, 0], [1, 0, 2, 0], [5, 0, 1, 0]])
    p = torch.where((counts > 0)[:, :, None], p, 7.0)  # what is absent must not be read
    up = {"protos": Ragged(p, counts > 0), "counts": Ragged(counts, counts > 0), "ids": torch.arange(3)}
    old = Ragged(randn(C, D, seed=5), torch.tensor([False, True, False, True]))
    start: dict[str, Any] = tree_map(lambda t: t.double() if t.is_floating_point() else t, find(name)().init(TASK))
    want = {
        "rows": [(9 * p[0, 0] + p[1, 0] + 5 * p[2, 0]) / 15, p[0, 1], (2 * p[1, 2] + p[2, 2]) / 3],
        "clients": [p[:, 0].mean(0), p[0, 1], (p[1, 2] + p[2, 2]) / 2],
    }
    for weighting, means in want.items():
        got = find(name)(weighting=weighting).aggregate(start | {"protos": old}, up, TASK)["protos"]
        assert_close(got.values[:3], torch.stack(means), **TIGHT)
        assert torch.equal(got.values[3], old.values[3]) and got.present.all()
    assert find(name)().aggregate(start, up, TASK)["protos"].present.tolist() == [True, True, True, False]


HELD = [[0, 1], [1, 2], [2], [3]]


@pytest.mark.parametrize(
    ("name", "config", "entries"),
    [
        ("fedproto", {}, ("protos",)),
        *(("fedpa", {"prototypes": kind} | EARLY["fedpa"], ("protos",)) for kind in ("final", "running")),
        *(("fedhkd", {"knowledge": kind}, ("features", "soft")) for kind in ("final", "running")),
    ],
)
def test_a_class_that_nobody_told_keeps_what_is_known_and_each_known_one_is_sent(
    name: str, config: dict, entries: tuple
) -> None:
    sim = simulate(name, DIGITS.override(participation=0.5), random_federation([8, 6, 7, 5], HELD), **config)
    known: set[int] = set()
    for t in range(1, 6):
        before = {n: sim.state.server[n] for n in entries}
        row, held = play(sim, 1)[0], [HELD[k] for k in engine.participants(sim.setup, t).tolist()]
        here, told = set().union(*held), sum(map(len, held))
        model, width = (sum(v.numel() for v in sim.state.server.get("shared", {}).values()), D + C * (len(entries) - 1))
        if name != "fedpa":  # it sends a generator too
            assert row["down_floats"] == 2 * (model + len(known) * width)
            assert row["up_floats"] == 2 * model + told * width and row["up_ints"] == 2 * bool(model) + told
        known |= here
        for n, old in before.items():
            new = sim.state.server[n]
            assert {c for c in range(C) if new.present[c]} == known
            for c in range(C):
                assert torch.equal(new.values[c], old.values[c]) == (c not in here)
    assert known == {0, 1, 2, 3}
