"""The named scenarios: small ones of fedtune's own, and those of the papers whose algorithms are built in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from fedtune.core.errors import unknown
from fedtune.data import datasets, user_metadata
from fedtune.experiment.scenario import Scenario
from fedtune.user_code import user_files

# How clients train where no paper says it, by data set and model: from sweeps of FedAvg (docs/reference/scenarios.md)
SWEPT: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "cnn8"): {"lr": 0.03, "momentum": 0.9},
    ("digits", "mlp"): {"lr": 0.1, "momentum": 0.5},
    ("fashion-mnist", "fedproto-cnn"): {"lr": 0.03, "momentum": 0.5},
}
NOT_SWEPT = {"lr": Scenario.lr, "momentum": Scenario.momentum}
_GFPL_MNIST = Scenario(
    model="fedproto-cnn",
    shots=100,
    shots_spread=2,
    ways_spread=2,
    val_shots=40,
    test_shots=40,
    rounds=100,
    all_classes=1000,
)
_DIRICHLET = Scenario(
    dataset="fashion-mnist",
    model="fedproto-cnn",
    partition="dirichlet",
    batch=10,
    momentum=0.0,
    floor=40,
    rounds=100,
    all_classes=1000,
)

# FedGen's setting, which FedPA and FedGenP share: "20 local epochs" are 20 mini-batches in their code, and all clients'
# test rows are scored together.  FedGenP's table 2 has one more ReLU (--model fedgenp-cnn).
_FEDGEN = Scenario(
    model="fedgen-cnn",
    partition="fedgen",
    clients=20,
    local_steps=20,
    batch=32,
    momentum=0.0,
    evaluation="pooled",
    val_share=0.15,
    all_classes=1000,
)
_FEDPA = _FEDGEN.override(participation=0.5, rounds=200, optimizer="adam", lr=3e-4)
_FEDPA_DATA: dict[str, tuple[tuple[float, float], dict[str, Any]]] = {
    # the paper's two alphas.  Shares are the code's (the paper gives none), floors those of its scripts: 10 rows for
    # MNIST, else 10 per class.  fmnist9: the published script drops class 0 of Fashion-MNIST.
    "mnist": ((0.1, 1), {"dataset": "mnist", "share": 0.5, "floor": 10}),
    "emnist": ((0.1, 1), {"dataset": "emnist-letters", "share": 0.1, "floor": 260, "lr": 1e-4}),
    "fmnist": ((0.3, 1), {"dataset": "fashion-mnist", "share": 0.5, "floor": 100}),
    "fmnist9": ((0.3, 1), {"dataset": "fashion-mnist", "share": 0.5, "floor": 90, "skip_classes": 1}),
}
# clients are groups of ten celebrities, as in FedGen's script; FedPA's paper gives neither the number nor the split
_CELEBA = {"dataset": "celeba", "model": "celeba-cnn", "partition": "natural", "owners": 10}
_FEDGENP = _FEDGEN.override(rounds=100, optimizer="sgd", lr=0.01)
_FEDGENP_DATA: dict[str, tuple[tuple[float, float], dict[str, Any]]] = {
    # tables 3 and 4: alphas, share of the training rows, active clients.  Table 3 gives 20, 10 and 20 active clients
    # (of 20, according to the text on table 6); table 4 gives none: 10 of 20 here.
    "mnist-100pct": ((0.1, 1), {"dataset": "mnist", "share": 1.0, "floor": 10}),
    "mnist-10pct": ((1, 10), {"dataset": "mnist", "share": 0.1, "floor": 10, "participation": 0.5}),
    "mnist-5pct": ((1, 10), {"dataset": "mnist", "share": 0.05, "floor": 10}),
    "emnist-100pct": ((0.1, 1), {"dataset": "emnist-letters", "share": 1.0, "floor": 260, "participation": 0.5}),
    # at alpha 0.01 one draw in 300 reaches this floor; half of them leave some client with less than two rows
    "emnist-10pct": ((0.01, 1), {"dataset": "emnist-letters", "share": 0.1, "floor": 260, "participation": 0.5}),
}

# FedSA's setting: Dirichlet 0.1 over the pooled rows, a quarter of each client's rows for test (and 15 % for
# validation, which we added); every client in every round, or 10 of 100.  One architecture, or a family of them.
_FEDSA = Scenario(partition="dirichlet", alpha=0.1, batch=10, momentum=0.0, floor=40)
_FEDSA_KINDS: dict[str, dict[str, Any]] = {
    "silo": {"clients": 20, "rounds": 200, "all_classes": 1000},
    "device": {"clients": 100, "participation": 0.1, "rounds": 1000},
}
_FEDSA_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar10": ("htfe8", {"dataset": "cifar10", "model": "mcmahan-cnn"}),
    "cifar100": ("htfe8", {"dataset": "cifar100", "model": "mcmahan-cnn"}),
    "tinyimagenet": ("htfe8", {"dataset": "tiny-imagenet", "model": "mcmahan-cnn"}),
    # fedtune's own, small enough for two cores
    "fmnist": ("htmini3", {"dataset": "fashion-mnist", "model": "fedproto-cnn", "rounds": 100}),
    "digits": ("htmini3", {"dataset": "digits", "model": "cnn8", "rounds": 100, "floor": 9, "all_classes": 100}),
}

# Scenarios where federated learning can gain much over local training: few training rows, many test rows.
_FEW_SHOTS = _GFPL_MNIST.override(
    dataset="fashion-mnist", ways=6, ways_spread=1, shots=10, val_shots=10, test_shots=60, all_classes=1000, rounds=60
)
# Every model starts from the same body, which was trained on classes that no client holds.  all_classes is for ten
# classes, so this is 200 rows of each of the five.
_COMMON_BODY = _FEW_SHOTS.override(skip_classes=5, ways=3, all_classes=2000, pretrained="fmnist-first5")

_NAMED: dict[str, Scenario] = {
    # the default: rows enough for mixtures, and few enough that federated learning gains something over local training
    "digits-shards": Scenario(
        clients=10, partition="shards", shards=6, val_share=0.25, test_share=0.3, all_classes=400, batch=8, rounds=30,
    ),
    "digits-w4": Scenario(),
    "digits-dir0.1": Scenario(partition="dirichlet", floor=20),
    # GFPL and FedProto (spec 3.4); Fashion-MNIST stands in for MNIST's shape
    **{f"gfpl-fmnist-w{w}": _GFPL_MNIST.override(dataset="fashion-mnist", ways=w) for w in (3, 4, 5)},
    "gfpl-mnist-w4": _GFPL_MNIST.override(dataset="mnist"),
    "gfpl-fmnist-few": _FEW_SHOTS,
    # 60 test rows would let 16 clients hold a class: 160 places, and 20 clients with 7 to 9 classes may need more
    "gfpl-fmnist-few-w8": _FEW_SHOTS.override(ways=8, test_shots=50),
    # trains the common body: one client that holds classes 0 to 4, 28,000 training rows
    "fmnist-first5": Scenario(
        dataset="fashion-mnist", model="fedproto-cnn", keep_classes=5, clients=1, partition="iid", batch=32,
        momentum=0.9, rounds=5, val_share=0.1, test_share=0.1,
    ),
    "gfpl-fmnist-common": _COMMON_BODY.override(body_lr_scale=0.1),
    "gfpl-fmnist-common-frozen": _COMMON_BODY.override(body_lr_scale=0.0),
    # each class has only 500 rows
    **{
        f"gfpl-mnist5k-w{w}": _FEW_SHOTS.override(
            dataset="mnist-5k", ways=w, ways_spread=2, shots=20, val_shots=8, test_shots=12
        ) for w in (3, 4, 5)
    },
    "gfpl-20-classes": _FEW_SHOTS.override(dataset="fashion-mnist+mnist-5k", ways=8, test_shots=20),
    "gfpl-40-classes": _FEW_SHOTS.override(dataset="fashion-mnist-rot4", ways=8, test_shots=30),
    "gfpl-cifar10-w4": _GFPL_MNIST.override(
        dataset="cifar10", model="resnet18", ways_spread=1, shots_spread=1, val_shots=15, test_shots=15, batch=32,
        rounds=110,
    ),
    "digits-fedgen": Scenario(
        partition="fedgen", alpha=0.3, clients=10, participation=0.5, local_steps=20, batch=16, floor=15, rounds=60,
        evaluation="pooled",
    ),
    **{f"fedpa-{d}-a{a:g}": _FEDPA.override(alpha=a, **o) for d, (both, o) in _FEDPA_DATA.items() for a in both},
    "fedpa-celeba": _FEDPA.override(**_CELEBA),
    **{f"fedgenp-{d}-a{a:g}": _FEDGENP.override(alpha=a, **o) for d, (both, o) in _FEDGENP_DATA.items() for a in both},
    # table 5: the share r of 25 clients is active (250 celebrities by ten, as FedGen's script has it by default)
    **{
        f"fedgenp-celeba-r{r:g}": _FEDGENP.override(clients=25, participation=r, **_CELEBA)
        for r in (0.2, 0.4, 0.6, 0.8, 1.0)
    },
    **{
        name: _FEDSA.override(**v | o | {"model": model})
        for d, (family, o) in _FEDSA_DATA.items() for k, v in _FEDSA_KINDS.items()
        for name, model in ((f"fedsa-{d}-{k}", o["model"]), (f"fedsa-{d}-{k}-{family}", family))
    },
    # label skew as in PFLlib: each class is divided over clients; 25 % of each client's rows for test
    **{f"fmnist-dir{a:g}": _DIRICHLET.override(alpha=a) for a in (0.1, 0.3, 1.0)},
}  # fmt: skip

DEFAULT = "digits-shards"


def swept(name: str, dataset: str, model: str, optimizer: str = Scenario.optimizer) -> dict[str, Any]:
    """How clients train in a scenario on this data set with this model, by default; empty if a paper says it."""
    if name in _NAMED and not name.startswith(("digits-", "gfpl-fmnist-few")):
        return {}
    found = SWEPT.get((dataset, model), {}) if name in _NAMED else {"lr": OWN.lr}
    return NOT_SWEPT | (found if optimizer == Scenario.optimizer else {})  # the sweeps were of SGD


SCENARIOS = {name: s.override(**swept(name, s.dataset, s.model)) for name, s in _NAMED.items()}
# the scenario of a user's own data, which has the data's name; its rate is that of the sweeps
OWN = Scenario(clients=10, partition="shards", shards=6, all_classes=400, batch=8, rounds=30, lr=0.03)
FOLLOWS = {  # fields of OWN that depend on the data (`user_scenario.defaults`), in words
    "dataset": "",
    "model": "mlp where rows are vectors or series, tokens where they are tokens",
    "partition": "natural where rows have owners",
    "owners": "1 where rows have owners",
    "clients": "one for each owner, or group of owners, where rows have owners",
}


def find(name: str) -> Scenario:
    """The scenario of this name, or of the user's own data; otherwise UserError with the nearest name."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    if not _is_own(name):
        raise unknown("scenario", name, SCENARIOS, "fedtune list scenarios")
    return OWN


def _is_own(name: str) -> bool:
    """Whether this is the name of a user's or a package's data set."""
    return user_files.is_reference(name) or name in user_metadata.offered()


def of_data(dataset: str) -> str:
    """The scenario if none was given: the default, or that of the user's data; UserError for an unreadable file."""
    if user_files.is_reference(dataset, datasets.names()):
        return user_files.take_each(dataset)[0]
    return dataset if dataset in user_metadata.offered() else DEFAULT


def on_own_data(field: str) -> str:
    """A field's value on a user's own data if it differs from the default scenario's; otherwise ""."""
    value = getattr(OWN, field)
    return FOLLOWS.get(field, "" if value == getattr(SCENARIOS[DEFAULT], field) else str(value))


def in_words(name: str, values: Mapping[str, Any], given: Collection[str] = ()) -> str:
    """A scenario's name with the values that differ from its own: `digits-w4 (rounds = 20)`.

    given: the fields that the user gave.  Other fields that depend on a user's own data are not mentioned.
    """
    has_scenario = name in SCENARIOS or _is_own(name)
    defaults = asdict(find(name)) if has_scenario else {}
    if name not in SCENARIOS:
        defaults |= {n: v for n, v in values.items() if n == "dataset" or n in (*FOLLOWS, "x_as") and n not in given}
    changed = ", ".join(f"{n} = {v}" for n, v in values.items() if n in defaults and v != defaults[n])
    return f"{name} ({changed})" if changed else name
