"""An author's own code is replayed where nothing but its tensors and its key can matter, and never gives other numbers.

Every case is trained twice, as it is and without any tape, and must agree in every bit.
"""

import gc
import inspect
import math
import random
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtune.conformance import exactness, models
from fedtune.conformance.law import Note
from fedtune.conformance.models import ModelSubject
from fedtune.conformance.subject import Subject
from fedtune.core.errors import UserError
from fedtune.core.pure_functions import is_pure
from fedtune.core.trees import named
from fedtune.engine import stacked_step
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry, scenarios, user_algorithms
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tracing import replayed
from fedtune.tracing.step_identity import Identity
from fedtune.user_code import packages, user_files

HEAD = """
import functools, itertools, math, os, random, sys, time
from collections import namedtuple
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedtune import Algorithm, Phase, hyper
from fedtune.experiment.algorithm import Step
from trainables.fedprox import FedProx
"""
OWN = """
{before}
@dataclass(frozen=True)
class Mine(Algorithm):
    mu: float = hyper(0.5, 0.1, 1.0)
    shared = ("body", "head")
    {members}
    def loss(self, m, batch, down):
        {loss}
"""
PLAIN = "return F.cross_entropy(m.head(m.body(batch.x)), batch.y)"
TIMES = "return F.cross_entropy(m.head(m.body(batch.x)), batch.y) * (1 + {} / 100)"
Case = dict[str, str]


def case(loss: str = PLAIN, before: str = "", members: str = "", **more: str) -> Case:
    """The parts of a file: what stands before the class, in it, and its loss; net: a model's file."""
    return {"loss": loss, "before": before, "members": members, **more}


def with_layer(layer: str, before: str) -> str:
    """The file of a net whose body ends in this layer.  before: the layer's class."""
    return textwrap.dedent(before) + textwrap.dedent(f"""
        def net(shape, classes):
            made = nn.Module()
            made.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), {layer})
            made.head = nn.Linear(16, classes)
            return made
    """)


def written(case: Case, folder: Path, note: str) -> tuple[str, str]:
    """Names of a file of an algorithm and of one of a model; another note makes them another module."""
    parts = {n: textwrap.dedent(case[n]).strip() for n in ("before", "members", "loss")}
    text = case.get("file") or OWN.format(
        before=parts["before"],
        members=textwrap.indent(parts["members"], " " * 4).strip(),
        loss=textwrap.indent(parts["loss"], " " * 8).strip(),
    )
    (folder / "mine.py").write_text(f"# {note}\n{HEAD}{text}")
    algorithm = user_files.take(str(folder / "mine.py:Mine"))[0]
    if "net" not in case:
        return algorithm, "mlp"
    (folder / "net.py").write_text(f"# {note}\n{HEAD}{textwrap.dedent(case['net'])}")
    return algorithm, user_files.take(str(folder / "net.py:net"))[0]


def trained(case: Case, folder: Path, note: str, executor: Any = "stack") -> Simulation:
    random.seed(3), np.random.seed(3), torch.set_default_dtype(torch.float32)
    algorithm, model = written(case, folder, note)
    scenario = scenarios.find("digits-w4").override(clients=3, local_steps=6, batch=8, model=model)
    simulation = Simulation(Experiment(algorithm, scenario, executor=executor), {}, partitioning.make(scenario, 0))
    for _ in range(4):
        simulation.step()
    return simulation


@pytest.fixture(autouse=True)
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def both(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[str]]:
    """Whether its steps were replayed, and why they were not; the same run without a tape must agree in every bit."""
    taped = trained(case, folder, f"taped {folder}")
    with monkeypatch.context() as patch:
        patch.setattr(replayed, "identity", lambda loss, net: Identity(None))
        plain = trained(case, folder, f"plain {folder}")
    assert not kinds(plain)
    for a, b in zip(taped.state.groups, plain.state.groups, strict=True):
        assert all(torch.equal(t, named(b.tensors)[n]) for n, t in named(a.tensors).items())
    assert [numbers(r.row) for r in (taped.last, plain.last)] == [numbers(taped.last.row)] * 2
    nets = {id(g.net): g.net for g in taped.state.groups}
    said = [why for net in nets.values() for why in stacked_step.reasons(net)]
    return any(kind.believed for kind in kinds(taped)), said


def kinds(simulation: Simulation) -> list[replayed.Kind]:
    known = [replayed.known(g.net) for g in simulation.state.groups]
    return [kind for of in known for key, kind in of.items() if key[0] is stacked_step.StackedStep]


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in row.items() if "seconds" not in n}


CLEAN = {
    "a helper, constants, math": case(
        "return weighed(F.cross_entropy(m.head(m.body(batch.x)), batch.y, reduction='none'), self.mu)",
        "POWERS = (1, 2)\nSCALES = {'a': [0.5, 2.0]}\n"
        "def weighed(x, mu, *, share=0.5):\n"
        "    return sum((x ** p).mean() * math.sqrt(s) for p, s in zip(POWERS, SCALES['a'])) * share * mu",
    ),
    "a subclass of a built-in": case(
        file="@dataclass(frozen=True)\nclass Mine(FedProx):\n"
        "    def loss(self, m, batch, down):\n"
        "        return super().loss(m, batch, down) + 1e-3 * self.bend(m['head.weight'])\n"
        "    @staticmethod\n    def bend(w):\n        return (w ** 4).sum()\n"
    ),
    "functions within, and a layer of PyTorch's": case(
        """
        def norm(w):
            total = total_of([w])
            return total
        total_of = lambda ws: torch.stack([(w * w).sum() for w in ws]).sum()
        seen = {}
        seen["z"] = m.body(batch.x)
        seen["all"] = [seen["z"]]
        seen["all"].append(m["head.weight"])
        with torch.no_grad():
            share = torch.sigmoid(seen["z"].mean())
        return CE(m.head(seen["z"]), batch.y) + share * norm(seen["all"][1]) * SCALE.sum()
        """,
        "CE = nn.CrossEntropyLoss(label_smoothing=0.1)\nSCALE = torch.tensor([0.01, 0.02])",
    ),
    "a decorated helper": case(
        "return halved(m, batch)",
        "def half(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a) / 2\n    return g\n"
        "@half\ndef halved(m, batch):\n    return F.cross_entropy(m.head(m.body(batch.x)), batch.y)",
    ),
    "the round in a partial": case(
        TIMES.format("self.at(t)").replace("return", "t = 0; return"),
        members="def phases(self, task):\n    return (Phase(partial(self.loss_at, task.t)),)\n"
        "def at(self, t):\n    return t * self.mu\n"
        "def loss_at(self, t, m, batch, down):\n    " + TIMES.format("self.at(t)"),
    ),
    "a second step": case(
        before="HALVES = (0.5, 0.25)",
        members="def phases(self, task):\n"
        "    return (Phase(self.loss, after=Step(self.second, ('head',), 'sgd', 0.01)),)\n"
        "def second(self, m, batch, down):\n"
        "    return HALVES[1] * F.cross_entropy(m.head(m.body(batch.x)), batch.y)",
    ),
    "the round in a closure": case(
        members="def phases(self, task):\n"
        "    return (Phase(lambda m, batch, down: self.loss(m, batch, down) * (1 + task.t / 100)),)",
    ),
    "a layer of one's own": case(
        net=with_layer(
            "Gated(16, 2)",
            """
        class Gated(nn.Module):
            def __init__(self, width, depth):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
                self.gate = nn.Parameter(torch.zeros(width))
                self.share, self.norm = 0.5, nn.BatchNorm1d(width)
            def forward(self, x):
                for layer in self.layers:
                    x = x + self.share * torch.tanh(layer(x)) * self.gate.sigmoid()
                return self.norm(x) if self.training else self.norm(x).clamp(min=-3)
        """,
        )
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_own_code_is_replayed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, why = both(CLEAN[name], tmp_path, monkeypatch)
    assert (replayed, why) == (True, [])


def test_what_others_registered_with_pythons_collector_is_no_strangers_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, called = gc.get_threshold(), []

    def collected(phase: str, about: dict[str, int]) -> None:
        called.append(phase)

    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        assert both(CLEAN[min(CLEAN)], tmp_path, monkeypatch) == (True, [])
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*before)
    assert called and gc.isenabled()


# what the server does between rounds, and client code reads: another content is another key
CHANGED = {
    "a global": case(
        TIMES.format("ROUND"),
        "ROUND = 0",
        "def aggregate(self, server, up, task):\n    global ROUND\n    ROUND += 1\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a list": case(
        TIMES.format("sum(HISTORY)"),
        "HISTORY = []",
        "def aggregate(self, server, up, task):\n    HISTORY.append(task.t)\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a helper": case(
        TIMES.format("helper()"),
        "def helper():\n    return 1\n",
        "def aggregate(self, server, up, task):\n    global helper\n    t = task.t\n    helper = lambda: t\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a helper's default": case(
        TIMES.format("helper()"),
        "def helper(at=[1]):\n    return at[0]\n",
        "def aggregate(self, server, up, task):\n    helper.__defaults__[0][0] += 1\n"
        "    return super().aggregate(server, up, task)",
    ),
    "an attribute of a helper": case(
        TIMES.format("helper.count"),
        "def helper():\n    return 0\nhelper.count = 0",
        "def aggregate(self, server, up, task):\n    helper.count += 1\n    return super().aggregate(server, up, task)",
    ),
    "the type of new tensors": case(
        TIMES.format("(torch.full((3,), 1 / 3) * torch.tensor(1 / 3, dtype=torch.float64)).sum()"),
        "",
        "def aggregate(self, server, up, task):\n    torch.set_default_dtype(torch.float64)\n"
        "    return super().aggregate(server, up, task)",
    ),
    "an attribute of the class": case(
        TIMES.format("self.seen"),
        "",
        "seen = 0\ndef aggregate(self, server, up, task):\n    Mine.seen += 1\n"
        "    return super().aggregate(server, up, task)",
    ),
    "an attribute of the instance": case(
        TIMES.format("self.seen"),
        "",
        "seen = 0\ndef aggregate(self, server, up, task):\n    object.__setattr__(self, 'seen', task.t)\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a method": case(
        TIMES.format("self.seen()"),
        "",
        "def seen(self):\n    return 0\n"
        "def aggregate(self, server, up, task):\n    t = task.t\n    Mine.seen = lambda self: t\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a property that the parent reads": case(
        file="COUNT = [1.0]\n@dataclass(frozen=True)\nclass Mine(FedProx):\n"
        "    @property\n    def twice(self):\n        return COUNT[0]\n"
        "    def loss(self, m, batch, down):\n        return super().loss(m, batch, down) * self.twice\n"
        "    def aggregate(self, server, up, task):\n        COUNT[0] += 0.01\n"
        "        return super().aggregate(server, up, task)\n"
    ),
    "a tensor in place": case(
        TIMES.format("SCALE.sum()"),
        "SCALE = torch.ones(2)",
        "def aggregate(self, server, up, task):\n    SCALE.mul_(1.5)\n    return super().aggregate(server, up, task)",
    ),
    "another tensor": case(
        TIMES.format("scale.sum()"),
        "scale = torch.ones(2)\nold = scale",
        "def aggregate(self, server, up, task):\n    global scale\n"
        "    if task.t == 1:\n        scale = torch.ones(2)\n        old.zero_()\n"
        "    return super().aggregate(server, up, task)",
    ),
    "the net": case(
        "return F.cross_entropy(m.head(m.body(batch.x)), batch.y)",
        "NETS = []",
        "def build(self, net, task):\n    NETS.append(net)\n    return net\n"
        "def aggregate(self, server, up, task):\n    for net in NETS:\n        net.body[2].share += 1.0\n"
        "    return super().aggregate(server, up, task)",
        net=with_layer(
            "Scaled()",
            """
        class Scaled(nn.Module):
            share = 1.0
            def forward(self, x):
                return torch.relu(x) * self.share
        """,
        ),
    ),
    "a field, by another dict of the instance": case(
        TIMES.format("self.seen"),
        "",
        "seen = 0\ndef aggregate(self, server, up, task):\n"
        "    object.__setattr__(self, '__dict__', {**vars(self), 'seen': task.t})\n"
        "    return super().aggregate(server, up, task)",
    ),
    "an attribute, by another dict of a helper": case(
        TIMES.format("helper.count"),
        "def helper():\n    return 0\nhelper.count = 0",
        "def aggregate(self, server, up, task):\n    helper.__dict__ = {'count': task.t}\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a setting, by another dict of a module": case(
        PLAIN,
        "NETS = []",
        "def build(self, net, task):\n    NETS.append(net)\n    return net\n"
        "def aggregate(self, server, up, task):\n    for net in NETS:\n        part = net.body[2]\n"
        "        part.__dict__ = {**vars(part), 'share': part.share + 1}\n"
        "    return super().aggregate(server, up, task)",
        net=with_layer(
            "Scaled()",
            """
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.share = 1.0
            def forward(self, x):
                return torch.relu(x) * self.share
        """,
        ),
    ),
    "the class of the instance": case(
        file="@dataclass(frozen=True)\nclass Base(FedProx):\n    share = 1\n"
        "    def loss(self, m, batch, down):\n        return super().loss(m, batch, down) * (1 + self.share / 100)\n"
        "    def aggregate(self, server, up, task):\n"
        "        object.__setattr__(self, '__class__', [Mine, Other][task.t % 2])\n"
        "        return super().aggregate(server, up, task)\n"
        "@dataclass(frozen=True)\nclass Mine(Base):\n    share = 2\n"
        "@dataclass(frozen=True)\nclass Other(Base):\n    share = 50\n"
    ),
    "a named default that is set where there was none": case(
        TIMES.format("g()"),
        "def h(*, k=1):\n    return k\nh.__kwdefaults__.clear()\n"
        "def g():\n    try:\n        return h()\n    except TypeError:\n        return 1\n",
        "def aggregate(self, server, up, task):\n    h.__kwdefaults__['k'] = 40 * task.t\n"
        "    return super().aggregate(server, up, task)",
    ),
    "which row of a table it reads": case(
        before="TABLE = torch.linspace(0.1, 3, 100).view(10, 10)",
        members="def phases(self, task):\n    return (Phase(partial(self.loss_at, TABLE[task.t])),)\n"
        "def loss_at(self, w, m, batch, down):\n"
        "    return F.cross_entropy(m.head(m.body(batch.x)) * w[None], batch.y, weight=w)",
    ),
    "a number that is a shape": case(
        TIMES.format("torch.arange(0.0, N).unsqueeze(0).sum()"),
        "N = 3.0",
        "def aggregate(self, server, up, task):\n    global N\n    N += 1.0\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a number that is true or one": case(
        "f = (batch.y == 0) * ONE\n" + TIMES.format("(f + f).sum()"),
        "ONE = 1",
        "def aggregate(self, server, up, task):\n    global ONE\n    ONE = True if task.t % 2 == 0 else 1\n"
        "    return super().aggregate(server, up, task)",
    ),
    "a branch": case(
        "z = m.body(batch.x)\nreturn F.cross_entropy(m.head(z), batch.y) + (z.pow(2).mean() if ODD[0] else z.mean())",
        "ODD = [True]",
        "def aggregate(self, server, up, task):\n    ODD[0] = not ODD[0]\n"
        "    return super().aggregate(server, up, task)",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_between_rounds_is_in_the_key(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, why = both(CHANGED[name], tmp_path, monkeypatch)
    assert (replayed, why) == (True, [])


def test_code_that_is_other_operations_in_every_round_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "MISFITS", 1)
    turning = case(
        members="def phases(self, task):\n    t = task.t\n"
        "    return (Phase(lambda m, batch, down: self.at(t, m, batch)),)\n"
        "def at(self, t, m, batch):\n    z = m.body(batch.x)\n    for _ in range(t):\n        z = torch.tanh(z)\n"
        "    return F.cross_entropy(m.head(z), batch.y)",
    )
    simulation = trained(turning, tmp_path, "turning")
    found = {id(kind): kind for kind in kinds(simulation)}.values()
    assert len([kind for kind in found if kind.tape]) == 1  # the first round's
    assert all(kind.met <= 1 for kind in found if not kind.tape) and any(kind.unfit for kind in found)


# client code that looks at what no key holds, or leaves something behind, and what is said of it
IMPURE = {
    "an attribute of a tensor": (
        case(TIMES.format("SCALE.count"), "SCALE = torch.ones(1)\nSCALE.count = 1"),
        "reads SCALE, a tensor with attributes",
    ),
    "a counter": (case("global COUNT\nCOUNT += 1\n" + TIMES.format("COUNT"), "COUNT = 0"), "sets the global COUNT"),
    "a list that grows": (case("SEEN.append(1)\n" + TIMES.format("len(SEEN)"), "SEEN = []"), "changes what it reads"),
    "a dict that is written into": (
        case("SEEN['n'] = SEEN['n'] + 1\n" + TIMES.format("SEEN['n']"), "SEEN = {'n': 0}"),
        "changes what it reads",
    ),
    "an iterator": (
        case(TIMES.format("next(COUNT)"), "COUNT = itertools.count()"),
        "reads COUNT, an instance of count",
    ),
    "the clock": (case(TIMES.format("0 * time.time()")), "reads time.time, which may depend on more"),
    "the environment": (case(TIMES.format("len(os.environ)")), "reads os.environ, an instance of _Environ"),
    "text": (case("print(end='')\n" + PLAIN), "reads print"),
    "a file": (case(TIMES.format("len(open(os.devnull).read())")), "reads open"),
    "its own field": (
        case("object.__setattr__(self, 'n', self.n + 1)\n" + TIMES.format("self.n"), members="n = 0"),
        "reads object",
    ),
    "its class": (case("Mine.n += 1\n" + TIMES.format("self.n"), members="n = 0"), "sets .n"),
    "a table on its class": (
        case("self.n.append(1)\n" + TIMES.format("len(self.n)"), members="n = []"),
        "changes what it reads",
    ),
    "an object on its class": (
        case(TIMES.format("next(self.n)"), members="n = itertools.count()"),
        "reads .n, an instance of count",
    ),
    "a default argument": (
        case(TIMES.format("self.seen()"), members="def seen(self, n=[]):\n    n.append(1)\n    return len(n)"),
        "changes what it reads",
    ),
    "a variable of a function around it": (
        case(
            TIMES.format("count()"),
            "def counter():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n        return n\n"
            "    return count\ncount = counter()",
        ),
        "sets n of the function around it",
    ),
    "a generator": (case(TIMES.format("next(COUNT)"), "COUNT = (n for n in range(1000))"), "an instance of generator"),
    "a method that is bound to a list": (
        case(
            TIMES.format("self.seen()"),
            "import types\nL = [1]",
            "seen = types.MethodType(lambda box: box[0], L)\ndef aggregate(self, server, up, task):\n    L[0] += 3\n"
            "    return super().aggregate(server, up, task)",
        ),
        "reads .seen, an instance of method",
    ),
    "a variable of a function around it that has no value": (
        case(
            TIMES.format("helper(1)"),
            "def make(flag):\n    if flag:\n        scale = 2.0\n"
            "    def helper(x):\n        return x * scale if flag else x\n    return helper\nhelper = make(False)",
        ),
        "reads scale, which is not defined yet",
    ),
    "a property": (
        case(
            TIMES.format("self.n"),
            "COUNT = [0]",
            "@property\ndef n(self):\n    COUNT.append(1)\n    return len(COUNT)",
        ),
        "changes what it reads",
    ),
    "an object": (
        case(
            TIMES.format("BOX.n()"),
            "class Box:\n    at = 0\n    def n(self):\n        self.at += 1\n        return self.at\nBOX = Box()",
        ),
        "reads BOX, an instance of Box",
    ),
    "a class of one's own": (
        case(
            "return Scaled.apply(F.cross_entropy(m.head(m.body(batch.x)), batch.y))",
            "class Scaled(torch.autograd.Function):\n    generate_vmap_rule = True\n"
            "    @staticmethod\n    def forward(x):\n        return x * 1\n"
            "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
            "    @staticmethod\n    def backward(ctx, grad):\n        return grad * 0.5",
        ),
        "reads Scaled, which is a class",
    ),
    "an import": (case("import time\n" + TIMES.format("0 * time.time()")), "imports time while it runs"),
    "values as text": (case(TIMES.format("len(str(batch.x))")), "runs _str ("),
    "values in a text": (case(TIMES.format("len(f'{batch.x}')")), "runs _str ("),
    "a list that a loss beside it writes into": (
        case(
            TIMES.format("len(SEEN)"),
            "SEEN = []",
            "def phases(self, task):\n"
            "    return (Phase(self.loss, after=Step(self.second, ('head',), 'sgd', 0.01)),)\n"
            "def second(self, m, batch, down):\n"
            "    SEEN.append(1)\n    return F.cross_entropy(m.head(m.body(batch.x)), batch.y)",
        ),
        "could change what the loss beside it reads",
    ),
    "a loss beside it that sets a global": (
        case(
            TIMES.format("COUNT"),
            "COUNT = 0",
            "def phases(self, task):\n"
            "    return (Phase(self.loss, after=Step(self.second, ('head',), 'sgd', 0.01)),)\n"
            "def second(self, m, batch, down):\n    global COUNT\n    COUNT += 1\n"
            "    return F.cross_entropy(m.head(m.body(batch.x)), batch.y)",
        ),
        "sets the global COUNT",
    ),
    "an address": (case(TIMES.format("0 * id(batch)")), "reads id"),
    "what a name means": (case(TIMES.format("len(globals())")), "reads globals"),
    "Python's insides": (case(TIMES.format("len(helper.__globals__)"), "def helper(): pass"), "reads .__globals__"),
    "the process's precision": (case(TIMES.format("torch.get_num_threads()")), "reads torch.get_num_threads"),
    "PyTorch's chance": (case("torch.manual_seed(3)\n" + PLAIN), "reads torch.manual_seed"),
    "a hook": (
        case(
            "z = m.body(batch.x)\nif z.requires_grad:\n"
            "    z.register_hook(lambda g: g * 0.5)\n"
            "return F.cross_entropy(m.head(z), batch.y)"
        ),
        "reads .register_hook",
    ),
    "a method of Python's own": (
        case(
            TIMES.format("abs(self)"),
            "COUNT = [0]",
            "def __abs__(self):\n    COUNT.append(1)\n    return len(COUNT)",
        ),
        "runs Mine.__abs__",
    ),
    "a layer that counts": (
        case(
            net=with_layer(
                "Counting()",
                """
        class Counting(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0
            def forward(self, x):
                self.calls += self.training
                return torch.relu(x) * (1 + self.calls / 100 * self.training)
        """,
            )
        ),
        "sets .calls",
    ),
    "a layer that keeps": (
        case(
            net=with_layer(
                "Keeping()",
                """
        class Keeping(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = []
            def forward(self, x):
                if self.training:
                    self.seen.append(1)
                return torch.relu(x) * (1 + len(self.seen) / 1000 * self.training)
        """,
            )
        ),
        "changes what it reads",
    ),
    "a hook of PyTorch's own on a layer": (
        case(
            net="""
        from torch.nn.utils import prune
        def net(shape, classes):
            made = nn.Module()
            made.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU())
            prune.l1_unstructured(made.body[1], "weight", 0.5)
            made.head = nn.Linear(16, classes)
            return made
        """
        ),
        "has a hook on the module body.1",
    ),
}


@pytest.mark.parametrize("name", IMPURE)
def test_what_no_key_holds_is_never_replayed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, said = IMPURE[name]
    replayed, why = both(one, tmp_path, monkeypatch)
    assert not replayed
    assert len(why) == 1 and said in why[0], why


def test_pure_functions_are_told_from_others() -> None:
    functions = {n: f for n, f in vars(F).items() if inspect.isroutine(f) and n[0] != "_"}
    assert {n for n, f in functions.items() if not is_pure(f)} <= {
        "boolean_dispatch",
        "handle_torch_function",
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
    }
    for pure in (torch.einsum, torch.linalg.inv, torch.special.expit, torch.func.grad, nn.HuberLoss, math.exp, sorted):
        assert is_pure(pure)
    for other in (torch.manual_seed, torch.from_file, torch.get_default_dtype, torch.load, random.random, print, id):
        assert not is_pure(other)


def test_check_says_why_steps_run_anew(tmp_path: Path) -> None:
    one, _ = IMPURE["text"]
    subject = Subject(user_algorithms.find(written(one, tmp_path, "checked")[0]))
    note = exactness.one_program(subject)
    assert isinstance(note, Note)
    assert note.what == "every step runs anew: mine.py:24 reads print, which may depend on more than its arguments"
    setting = case(
        net=with_layer(
            "Setting()",
            """
        class Setting(nn.Module):
            def forward(self, x):
                self.width = x.shape[-1]
                return torch.relu(x)
        """,
        )
    )
    note = models.one_program(ModelSubject(written(setting, tmp_path, "setting")[1], Scenario()))
    assert isinstance(note, Note)
    assert re.fullmatch(r"every step runs anew: net.py:\d+ sets .width", note.what)
    counting, _ = IMPURE["a layer that counts"]  # whose numbers are others, too
    note = models.one_program(ModelSubject(written(counting, tmp_path, "counting")[1], Scenario()))
    assert isinstance(note, Note) and note.what.endswith("from each alone: clients are run one after the other")


@pytest.mark.parametrize("algorithm", ["fedfa", "fedgen", "gfpl", "moon"])
def test_a_copy_of_a_built_in_is_replayed_as_it_is(algorithm: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{algorithm}.py"
    copy.write_text((packages.folder("trainables") / copy.name).read_text())
    scenario = scenarios.find("digits-w4").override(clients=3, local_steps=6, batch=8, model="mlp")
    rows, replayed = [], []
    for name in (algorithm, user_files.take(str(copy))[0]):
        values = dict(registry.find(algorithm).checked_with)
        simulation = Simulation(Experiment(name, scenario, executor="stack"), values, partitioning.make(scenario, 0))
        rows.append([numbers(simulation.step()) for _ in range(3)])
        replayed.append(any(kind.believed for kind in kinds(simulation)))
    assert rows[0] == rows[1]
    assert replayed == [True, True]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (case("return 'loss'"), "a loss is one number, a tensor .*, but this algorithm's is 'loss'"),
        (case("yield batch.x.sum()"), "but this algorithm's is a generator"),
        (case(members="def keep(self, task):\n    return None"), "Mine.keep must give a dict .* but gives None"),
    ],
)
def test_what_client_code_must_give_is_said_in_a_line(one: Case, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        trained(one, tmp_path, "wrong", "loop")
