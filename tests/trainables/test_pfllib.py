"""Rounds of PFLlib's own servers and clients, on the same rows, weights and batches: the parameters agree.

Needs a checkout of PFLlib (https://github.com/TsingZ0/PFLlib; tried with d832e76), else all is skipped:

    FEDTUNE_PFLLIB=../PFLlib python -m pytest tests/trainables/test_pfllib.py

A mini-batch is all rows of a client, so that the order in which either code draws them does not matter.
"""

import argparse
import ast
import copy
import importlib
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core.torchvision_import import datasets as _torchvision  # noqa: F401 - makes it importable
from fedtune.engine.simulation import Simulation
from fedtune.nn.simplex import least_mixtures

CHECKOUT = Path(os.environ.get("FEDTUNE_PFLLIB", "")) / "system"
pytestmark = pytest.mark.skipif(not (CHECKOUT / "main.py").is_file(), reason="FEDTUNE_PFLLIB names no checkout")

ROUNDS, LR = 3, 0.1
SCENARIO = DIGITS.override(local_epochs=2)
PLAIN: dict[str, Any] = {"lr": LR, "momentum": 0.0, "batch": 9}
CLOSE = {"rtol": 0, "atol": 1e-9}
THEIRS = {"body": "base", "head": "head"}  # PFLlib's names of a model's parts


class Split(nn.Module):
    """Our net under PFLlib's names of its parts."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.base, self.head = copy.deepcopy(net.body), copy.deepcopy(net.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


@pytest.fixture
def pfllib(monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """PFLlib's modules can be imported; its defaults, as its main.py declares them."""
    monkeypatch.syspath_prepend(str(CHECKOUT))
    for name in ("h5py", "ujson", "calmsize", "cvxpy"):  # for files and solvers that no round needs
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    parser = argparse.ArgumentParser()
    for node in ast.walk(ast.parse((CHECKOUT / "main.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
            eval(ast.unparse(node), {"parser": parser})  # noqa: S307 - of the checkout that the tester has named
    return parser.parse_args(["-dev", "cpu"])


@pytest.fixture
def double() -> Iterator[None]:
    """PFLlib's own tensors have float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def server_of(args: argparse.Namespace, module: str, name: str, sim: Simulation, monkeypatch: Any, **more: Any) -> Any:
    """PFLlib's server with clients of the run's rows and weights."""
    k = len(sim.state.groups[0].ids)
    rows = [own_rows(sim, i) for i in range(k)]
    reads = lambda dataset, i, **kept: list(zip(*rows[i], strict=True))  # noqa: E731
    kind = getattr(importlib.import_module(f"flcore.servers.{module}"), name)
    for used, has in list(sys.modules.items()):
        if used.startswith("flcore.") and hasattr(has, "read_client_data"):
            monkeypatch.setattr(has, "read_client_data", reads)
    vars(args).update(model=Split(client_net(sim, 0)), num_clients=k, num_classes=sim.setup.task.classes, batch_size=1)
    vars(args).update(local_learning_rate=LR, local_epochs=sim.setup.scenario.local_epochs, **more)
    np.random.seed(0)  # noqa: NPY002 - PFLlib draws from it
    server = kind(args, 0)
    for client in server.clients:
        client.batch_size = client.train_samples
    server.selected_clients, server.current_num_join_clients = server.clients, k
    return server


def rounds_of(server: Any) -> None:
    """Train ROUNDS rounds as the server's own `train` does, without scoring."""
    for _ in range(ROUNDS):
        server.send_models()
        for client in server.clients:
            if hasattr(client, "ptrain"):
                client.ptrain()
            client.train()
        server.receive_models()
        server.aggregate_parameters()


def ours(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of one of PFLlib's models under our names."""
    return {re.sub("^base", "body", n): t.detach() for n, t in model.named_parameters()}


def assert_agree(got: Any, want: dict[str, Tensor], missing: Any = ()) -> None:
    """All that PFLlib has, we have, and the same; missing: names that are looked for elsewhere."""
    assert want and got.keys() <= want.keys() and want.keys() - got.keys() <= set(missing)
    for name in got:
        t = want[name]
        assert_close(got[name], t, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


# our name, PFLlib's module and class, our hyperparameters and PFLlib's, and what is common: all, a part, or nothing
CASES: list[tuple[str, str, str, dict[str, Any], dict[str, Any], str]] = [
    ("fedavg", "serveravg", "FedAvg", {}, {}, "all"),
    ("fedprox", "serverprox", "FedProx", {"mu": 0.7}, {"mu": 0.7}, "all"),
    (
        "moon",
        "servermoon",
        "MOON",
        {"mu": 0.8, "temperature": 0.5, "projection": False},
        {"mu": 0.8, "tau": 0.5},
        "all",
    ),
    ("fedntd", "serverntd", "FedNTD", {"beta": 0.6, "tau": 2.0}, {"beta": 0.6, "tau": 2.0}, "all"),
    ("scaffold", "serverscaffold", "SCAFFOLD", {"server_lr": 0.7}, {"server_learning_rate": 0.7}, "all"),
    ("fedper", "serverper", "FedPer", {}, {}, "body"),
    ("fedrep", "serverrep", "FedRep", {"head_epochs": 3}, {"plocal_epochs": 3}, "body"),
    ("fedbabu", "serverbabu", "FedBABU", {}, {}, "body"),
    ("lgfedavg", "serverlg", "LG_FedAvg", {}, {}, "head"),
    ("fedrod", "serverrod", "FedROD", {}, {}, "all"),
]


@pytest.mark.parametrize(("name", "module", "cls", "config", "arguments", "common"), CASES, ids=[c[0] for c in CASES])
def test_rounds_agree(
    name: str,
    module: str,
    cls: str,
    config: dict[str, Any],
    arguments: dict[str, Any],
    common: str,
    pfllib: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = simulate(name, SCENARIO, random_federation([9, 9, 9]), **PLAIN, **config)
    server = server_of(pfllib, module, cls, sim, monkeypatch, **arguments)
    rounds_of(server)
    play(sim, ROUNDS)
    whole = server.global_model if common == "all" else nn.ModuleDict({THEIRS[common]: server.global_model})
    assert_agree(sim.state.server["shared"], ours(whole))
    for i, client in enumerate(server.clients):
        kept = ours(client.model)
        if name == "fedrod":
            kept = {f"personal.{n}": t for n, t in client.head.named_parameters()}
        assert_agree(
            {n: t[i] for n, t in sim.state.groups[0].tensors.items()}, kept, missing=sim.state.server["shared"]
        )


def test_dittos_both_models_agree(pfllib: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("ditto", SCENARIO, random_federation([9, 9]), **PLAIN, lam=0.6)
    server = server_of(pfllib, "serverditto", "Ditto", sim, monkeypatch, mu=0.6, plocal_epochs=2)
    rounds_of(server)
    play(sim, ROUNDS)
    common = {n.removeprefix("common."): t for n, t in sim.state.server["shared"].items()}
    assert_agree(common, ours(server.global_model))
    for i, client in enumerate(server.clients):
        assert_agree({n: t[i] for n, t in sim.state.groups[0].tensors.items()}, ours(client.model_per))


def test_fedprotos_clients_agree(pfllib: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the same prototypes: PFLlib's are means over features of a model that still moves."""
    sim = simulate("fedproto", SCENARIO, random_federation([9, 9]), **PLAIN, lam=0.6)
    server = server_of(pfllib, "serverproto", "FedProto", sim, monkeypatch, lamda=0.6)
    for t in range(ROUNDS):
        values, present = sim.state.server["protos"]
        if t:
            server.global_protos = {c: values[c] if present[c] else [] for c in range(len(present))}
            server.send_protos()
        for client in server.clients:
            client.train()
        play(sim, 1)
        for i, client in enumerate(server.clients):
            assert_agree({n: v[i] for n, v in sim.state.groups[0].tensors.items()}, ours(client.model))


def test_fedalas_weights_and_clients_agree(pfllib: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """PFLlib's weights learn for a pass more than losses are looked back at: here for ten."""
    config = {"weight_lr": 20.0, "sampled": 1.0, "settled": 1.0}
    sim = simulate("fedala", SCENARIO, random_federation([9, 9, 9]), **PLAIN, **config)
    server = server_of(pfllib, "serverala", "FedALA", sim, monkeypatch, eta=20.0, rand_percent=100, layer_idx=2)
    for client in server.clients:
        vars(client.ALA).update(batch_size=9, num_pre_loss=9, threshold=1.0)
    rounds_of(server)
    play(sim, ROUNDS)
    assert_agree(sim.state.server["shared"], ours(server.global_model))
    for i, client in enumerate(server.clients):
        got = {n: t[i] for n, t in sim.state.groups[0].tensors.items()}
        learnt = {f"weights.{n}": t for n, t in zip((1, 0), client.ALA.weights, strict=True)}
        assert any((t < 1).any() for t in learnt.values())
        assert_agree(got, ours(client.model) | learnt, missing=sim.state.server["shared"])


def test_pfedmes_common_models_agree(pfllib: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """PFLlib decays θ_k by 1e-3.  It then overwrites θ_k by w_k, which is what it scores."""
    config = {"lam": 0.6, "inner_steps": 3, "common_lr": LR, "server_step": 0.8, "weight_decay": 1e-3}
    sim = simulate("pfedme", SCENARIO, random_federation([9, 9, 9]), **PLAIN | {"lr": 0.2}, **config)
    theirs = {"lamda": 0.6, "K": 3, "p_learning_rate": 0.2, "beta": 0.8}
    server = server_of(pfllib, "serverpFedMe", "pFedMe", sim, monkeypatch, **theirs)
    for _ in range(ROUNDS):
        server.send_models()
        for client in server.clients:
            client.train()
        server.previous_global_model = copy.deepcopy([*server.global_model.parameters()])
        server.receive_models()
        server.aggregate_parameters()
        server.beta_aggregate_parameters()
    play(sim, ROUNDS)
    common = {n.removeprefix("common."): t for n, t in sim.state.server["shared"].items()}
    assert_agree(common, ours(server.global_model))


def test_fedpacs_bodies_and_mixtures_of_heads_agree(
    pfllib: argparse.Namespace, double: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PFLlib asks cvxpy for weights and cuts small ones; its heads have another order than their variances;
    and a client's mixture replaces its head before the next client's is made.
    """
    config = {"lam": 0.6, "weighting": "clients"}
    sim = simulate("fedpac", SCENARIO, random_federation([9, 9, 9]), **PLAIN, **config)
    server = server_of(pfllib, "serverpac", "FedPAC", sim, monkeypatch, lamda=0.6)
    used = sys.modules["flcore.servers.serverpac"]
    solved = lambda _, variances, h: least_mixtures(torch.stack(h).flatten(1), torch.tensor(variances))  # noqa: E731
    monkeypatch.setattr(used, "solve_quadratic", solved)
    for _ in range(ROUNDS):
        server.send_models()
        for client in server.clients:
            client.train()
        server.receive_protos()
        server.global_protos = used.proto_aggregation(server.uploaded_protos)
        server.send_protos()
        server.receive_models()
        server.aggregate_parameters()
        sent = [server.clients[i] for i in server.uploaded_ids]
        server.Vars, server.Hs = [c.V for c in sent], [c.h for c in sent]
        server.uploaded_heads = copy.deepcopy(server.uploaded_heads)
        server.aggregate_and_send_heads()
    play(sim, ROUNDS)
    assert_agree(sim.state.server["shared"], ours(nn.ModuleDict({"base": server.global_model})))
    for i, client in enumerate(server.clients):
        mixed = {n: t[sim.state.server["place"][i]] for n, t in sim.state.server["heads"].items()}
        assert_agree(mixed, ours(nn.ModuleDict({"head": client.model.head})))


def test_gpfls_three_parts_and_heads_agree(
    pfllib: argparse.Namespace, double: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With g and p of the received embeddings: PFLlib takes 0 in round 1, and the client's own later."""
    sim = simulate("gpfl", SCENARIO, random_federation([9, 9, 9]), **PLAIN, lam=0.2, mu=0.3)
    start = sim.state.server["shared"]
    server = server_of(pfllib, "servergpfl", "GPFL", sim, monkeypatch, lamda=0.2, mu=0.3)
    names = {"Conditional_gamma": "valve.scale", "Conditional_beta": "valve.shift", "embedding": "embedding"}

    def named(net: nn.Module) -> dict[str, Tensor]:
        return {re.sub(r"^\w+", lambda m: names[m[0]], n): t.detach() for n, t in net.named_parameters()}

    def begin(net: nn.Module) -> None:
        with torch.no_grad():
            for n, t in named(net).items():
                t.copy_(start[n])

    for client in server.clients:
        begin(client.GCE), begin(client.CoV)
        client.set_GCE(client.GCE)
    for _ in range(ROUNDS):
        for client in server.clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()
        server.send_models()
        server.global_GCE()
        server.global_CoV()
        for client in server.clients:
            client.set_GCE(server.GCE)
    play(sim, ROUNDS)
    body = ours(nn.ModuleDict({"base": server.global_model}))
    assert_agree(sim.state.server["shared"], body | named(server.GCE) | named(server.CoV))
    for i, client in enumerate(server.clients):
        got = {n: t[i] for n, t in sim.state.groups[0].tensors.items() if n.startswith("head.")}
        assert_agree(got, ours(nn.ModuleDict({"head": client.model.head})))
