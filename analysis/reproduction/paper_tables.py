"""The papers' tables and figures as grids of runs: rows of algorithms, columns of scenarios.

Labels of rows and columns are those of published.yaml, so that published figures are found.  Values that a figure
varies are ours where the paper prints none.  Algorithms have their defaults except where a table says otherwise.
"""

from __future__ import annotations

from typing import Any

from fedtune.analysis.reproduction.paper_grid import Column, GridRow, Panel, PaperGrid
from fedtune.experiment.registry import find
from fedtune.experiment.scenario import Scenario


def _all(*names: str) -> tuple[GridRow, ...]:
    our_names = {"LG-FedAvg": "lgfedavg"}
    return tuple(GridRow(name, our_names.get(name, name.lower())) for name in names)


# GFPL ------------------------------------------------------------------------------------------------------------

_FEMNIST = {
    "dataset": "emnist-byclass",
    "features": 80,
    "ways_spread": 1,
    "shots": 92,
    "shots_spread": 1,
    "val_shots": 15,
    "test_shots": 15,
    "rounds": 120,
}
_OF_GFPL = {"lr": 0.01, "momentum": 0.5}  # in scenarios of fedtune's own, clients train as in the paper
_GFPL: dict[str, tuple[str, dict[str, Any], str]] = {  # data set -> scenario, fields, what stands for what
    "MNIST": ("gfpl-mnist-w4", {}, ""),
    "FEMNIST": ("gfpl-mnist-w4", _FEMNIST, "EMNIST by class for FEMNIST"),
    "CIFAR10": ("gfpl-cifar10-w4", {}, ""),
    "CIFAR100": ("gfpl-cifar10-w4", {"dataset": "cifar100", "ways_spread": 2, "shots_spread": 2}, ""),
}
_BASELINES = _all(*"Local FeSEM FedProx FedPer FedAvg FedRep FedProto FedFA FedPA".split())
_PARTS = (
    GridRow("GFPL w/o DCS and PFG", "gfpl", {"dcs": False, "pfg": False}),
    GridRow("GFPL w/o DCS", "gfpl", {"dcs": False}),
    GridRow("GFPL w/o PFG", "gfpl", {"pfg": False}),
    *_all("GFPL"),
)


def _of(dataset: str, label: str, fields: dict[str, Any], config: dict[str, Any] | None = None) -> Column:
    """A column of GFPL's; its one printed number of rounds and parameters is taken as that of four classes a client."""
    scenario, own, instead = _GFPL[dataset]
    printed = {m: f"{dataset}, {m}" for m in ("rounds", "parameters")} if label == "w̄ = 4" else {}
    return Column(f"{dataset}, {label}", scenario, own | fields, config or {}, printed, instead)


def _swept(symbol: str, name: str, values: tuple[Any, ...], **others: Any) -> tuple[Column, ...]:
    """MNIST with a hyperparameter or a field at each value, the others as given."""
    columns = []
    for v in values:
        given = {name: v} | others
        fields = {n: given.pop(n) for n in list(given) if n in Scenario.__dataclass_fields__}
        columns.append(_of("MNIST", f"{symbol} = {v}", fields, given))
    return tuple(columns)


_GFPL_ONLY = _all("GFPL")
_COST = ("accuracy", "mb")
_OURS = "the values are ours, as the figure's axis is not legible"
_LAMBDA = tuple(c._replace(fields={"ways": 3}) for c in _swept("λ", "lam", (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)))
_LAMBDA = tuple(c._replace(label=c.label.removesuffix(".0")) for c in _LAMBDA)

# A dose is the passes over an event's pseudo-features, or over as many of a client's own (analysis/contrasts.yaml)
_VARIANTS_BY_DOSE: dict[str, dict[str, Any]] = {
    "GFPL": {},
    "GFPL w/o DCS": {"dcs": False},
    "Local with equal head steps": {"dcs": False, "retrain_on": "own"},
}
_VARIANTS_AT_DOSES = tuple(
    GridRow(f"{label}, dose {d}", "gfpl", config | {"retrain_epochs": d})
    for d in (1, 10, 50)
    for label, config in _VARIANTS_BY_DOSE.items()
)
_FRAME_ALONE = GridRow("GFPL w/o PFG", "gfpl", {"pfg": False})

# FedPA and FedGenP ---------------------------------------------------------------------------------------------------

_OFF = {"gamma_ad": 0.0, "lam_ge": 0.0, "lam_po": 0.0}


def _parts(label: str, *on: str) -> GridRow:
    return GridRow(label, "fedpa", {name: value for name, value in _OFF.items() if name not in on})


_FEDPA_PARTS = (
    _parts("none"),
    _parts("L_po", "lam_po"),
    _parts("L_ge", "lam_ge"),
    _parts("L_ad, L_ge", "gamma_ad", "lam_ge"),
    _parts("L_ge, L_po", "lam_ge", "lam_po"),
    _parts("L_ad, L_ge, L_po", *_OFF),
)
_EMNIST = {"gen_lr": 1e-4}  # section V: the rate of clients and of the generator, 3e-4 elsewhere
_FEDPA_DATA = (
    Panel("MNIST", (), tuple(Column(f"MNIST, α = {a}", f"fedpa-mnist-a{a}") for a in ("0.1", "1"))),
    Panel("EMNIST", (), tuple(Column(f"EMNIST, α = {a}", f"fedpa-emnist-a{a}", config=_EMNIST) for a in ("0.1", "1"))),
    Panel("FashionMNIST", (), tuple(Column(f"FashionMNIST, α = {a}", f"fedpa-fmnist-a{a}") for a in ("0.3", "1"))),
    Panel("CelebA", (), (Column("CelebA, iid", "fedpa-celeba"),)),
    # the released script drops a class; the paper does not say of which split its row is
    Panel(
        "FashionMNIST9",
        (),
        tuple(
            Column(f"FashionMNIST9, α = {a}", f"fedpa-fmnist9-a{a}", printed={"accuracy": f"FashionMNIST, α = {a}"})
            for a in ("0.3", "1")
        ),
    ),
)
_FEDPA_ROWS = _all("FedAvg", "FedProx", "FedEnsemble", "FedGen", "FedHKD", "FedPA")
_FEDGENP_ROWS = _all("FedAvg", "FedEnsemble", "FedGen", "FedGenP")
_SHARES = {"100pct": "100 %, 20 active", "10pct": "10 %, 10 active", "5pct": "5 %, 20 active"}


def _fedgenp(label: str, columns: tuple[Column, ...]) -> tuple[Panel, ...]:
    return (Panel(label, _FEDGENP_ROWS, columns),)


# FedSA ---------------------------------------------------------------------------------------------------------------

# values of HtFLlib, on which FedSA's code builds; one architecture has λ_CC = 0, as its scripts have it
_HTFL: dict[str, dict[str, Any]] = {name: dict(find(name).presets["htfllib"]) for name in ("fedgen", "fedproto")}
_ONE_BODY: dict[str, dict[str, Any]] = {"fedsa": {"lam_cc": 0.0}}
_FEDSA_ROWS = tuple(
    r._replace(config=_HTFL.get(r.algorithm, {}))
    for r in _all(*"LG-FedAvg FedGen FML FedKD FedDistill FedProto FedTGP FedSA".split())
)
_ONE_FORM = tuple(r._replace(config=_ONE_BODY.get(r.algorithm, r.config)) for r in _FEDSA_ROWS)
_FEDSA_DATA = {"Cifar10": "cifar10", "Cifar100": "cifar100", "Tiny-ImageNet": "tinyimagenet"}
_HTFE8 = "fedsa-cifar100-device-htfe8"
_DEVICE = "fedsa-fmnist-device"
_FEDSA_PARTS = (
    GridRow("EMA and R", "fedsa", {"embed": False, "lam_m": 0.0, "lam_cc": 0.0}),
    GridRow("EMA, R and embedding", "fedsa", {"lam_m": 0.0, "lam_cc": 0.0}),
    GridRow("EMA, R, embedding and CC", "fedsa", {"lam_m": 0.0}),
    GridRow("EMA, R, embedding and M", "fedsa", {"lam_cc": 0.0}),
    GridRow("all parts", "fedsa"),
)
_WEIGHTS = (0.1, 1, 5, 10)
_FEDSA_NOTE = "FedGen and FedProto are those of HtFLlib, on which FedSA builds"

GRIDS: dict[str, PaperGrid] = {
    "gfpl-table1": PaperGrid(
        "GFPL", "table 1", "classes a client", tuple(
            Panel(d, (*_BASELINES, *_GFPL_ONLY), tuple(_of(d, f"w̄ = {w}", {"ways": w}) for w in (3, 4, 5)),
                  ("accuracy", "rounds", "parameters"))
            for d in _GFPL
        ), 5,
    ),
    "gfpl-table2": PaperGrid(
        "GFPL", "table 2", "parts of GFPL, and spread of the rows a class", tuple(
            Panel(d, _PARTS, tuple(_of(d, f"ŝ = {s}", {"ways_spread": 1, "shots": 100, "shots_spread": s})
                                   for s in (1, 20)))
            for d in ("CIFAR10", "FEMNIST", "CIFAR100")
        ), 5,
    ),
    "gfpl-fig3": PaperGrid(
        "GFPL", "figure 3", "weight of the dot regression, Gaussians a class, and rows a class", (
            Panel("a: λ", _GFPL_ONLY, _LAMBDA),
            Panel("b: n", _GFPL_ONLY, _swept("n", "components", (1, 2, 4, 8, 16))),
            Panel("c: s̄", (*_GFPL_ONLY, *_all("FedProto", "FedAvg")), _swept("s̄", "shots", (5, 10, 20, 60, 100))),
        ), 5, f"{_OURS}; a has w̄ = 3, whose figures table 1 repeats",
    ),
    "gfpl-fig4": PaperGrid(
        "GFPL", "figure 4", "spread of the classes, rounds between events, and first event", (
            Panel("a: ŵ", (*_GFPL_ONLY, *_all("FedProto")), _swept("ŵ", "ways_spread", (0, 1, 2, 3))),
            Panel("b: S_T", _GFPL_ONLY, _swept("S_T", "every", (1, 2, 5, 10, 20)), _COST),
            Panel("c: t1", _GFPL_ONLY, _swept("t1", "start", (5, 10, 20, 30, 40), every=5), _COST, quick=45),
        ), 5, f"{_OURS}; c has S_T = 5, as at 10 every t1 up to 10 is the same schedule",
    ),
    "gfpl-fig6": PaperGrid(
        "GFPL", "figure 6", "fusion threshold S_C", (
            # algorithm 1, line 5, fuses all within S_C of the seed; ours all within S_C of one another
            Panel("S_C", (*_GFPL_ONLY, GridRow("GFPL, ball", "gfpl", {"linkage": "ball"})),
                  _swept("S_C", "threshold", (0.1, 1, 3, 10, 30, 100, 300)), _COST),
        ), 5, _OURS,
    ),
    "gfpl-fig7": PaperGrid(
        "GFPL", "figure 7", "what a client's communication grows with", (
            # ŵ = 0: with the scenario's ±2 classes w̄ = 2 and 3 are cut off below and their clients hold 3 and 3.5
            Panel("a: n", _GFPL_ONLY, _swept("n", "components", (1, 2, 4, 8, 16), ways_spread=0), ("mb",)),
            Panel("b: m", _GFPL_ONLY, _swept("m", "clients", (5, 10, 15, 20), ways_spread=0), ("mb",)),
            Panel("c: w̄", _GFPL_ONLY, _swept("w̄", "ways", (2, 3, 4, 5), ways_spread=0), ("mb",)),
        ), 5, _OURS + "; ŵ = 0, so that w̄ is what a client holds",
    ),
    "fedpa-table2": PaperGrid(
        "FedPA", "table II", "data set and label skew α",
        tuple(p._replace(rows=_FEDPA_ROWS, measures=("accuracy", "val", "total_mb")) for p in _FEDPA_DATA),
        note="FashionMNIST9 is without class 0, as in the released script; the paper's figures are those of its one "
        "row of FashionMNIST",
    ),
    "fedpa-table3": PaperGrid(
        "FedPA", "table III", "share C of the clients that take part in a round", (
            Panel("EMNIST, α = 0.1", _all("FedAvg", "FedGen", "FedHKD", "FedPA"), tuple(
                Column(f"EMNIST, C = {c}", "fedpa-emnist-a0.1", {"participation": c}, _EMNIST) for c in (0.1, 0.5, 0.8)
            )),
        ),
    ),
    "fedpa-table4": PaperGrid(
        "FedPA", "table IV", "parts of FedPA", (
            Panel("EMNIST", _FEDPA_PARTS, (Column("EMNIST, α = 0.1", "fedpa-emnist-a0.1", config=_EMNIST),)),
        ),
    ),
    "fedgenp-table3": PaperGrid(
        "FedGenP", "table 3", "share of the training rows, active clients and label skew α", _fedgenp("MNIST", tuple(
            Column(f"MNIST, {_SHARES[s]}, α = {a}", f"fedgenp-mnist-{s}-a{a}")
            for s, both in (("100pct", ("0.1", "1")), ("10pct", ("1", "10")), ("5pct", ("1", "10"))) for a in both
        )),
    ),
    "fedgenp-table4": PaperGrid(
        "FedGenP", "table 4", "share of the training rows and label skew α", _fedgenp("EMNIST", tuple(
            Column(f"EMNIST, {s.removesuffix('pct')} %, α = {a}", f"fedgenp-emnist-{s}-a{a}")
            for s, a in (("100pct", "0.1"), ("100pct", "1"), ("10pct", "0.01"), ("10pct", "1"))
        )),
    ),
    "fedgenp-table5": PaperGrid(
        "FedGenP", "table 5", "share r of the clients that are active", _fedgenp("CelebA", tuple(
            Column(f"CelebA, r = {r}", f"fedgenp-celeba-r{r}") for r in ("0.2", "0.4", "0.6", "0.8", "1")
        )),
    ),
    "fedgenp-table6": PaperGrid(
        "FedGenP", "table 6", "local epochs E, mini-batches in the code", (
            Panel("MNIST", _all("FedGenP"), tuple(
                Column(f"MNIST, E = {e}", "fedgenp-mnist-5pct-a10", {"local_steps": e, "rounds": 50})
                for e in (20, 30, 40, 50)
            )),
        ),
    ),
    "fedsa-table1": PaperGrid(
        "FedSA", "table 1", "all clients, or 10 of 100, in a round", tuple(
            Panel(d, _ONE_FORM, tuple(Column(f"{d}, cross-{kind}", f"fedsa-{name}-{kind}")
                                      for kind in ("silo", "device")))
            for d, name in _FEDSA_DATA.items()
        ), note=f"{_FEDSA_NOTE}; λ_CC is 0, as in the scripts of one architecture",
    ),
    "fedsa-table2": PaperGrid(
        "FedSA", "table 2", "architectures", (
            Panel("Cifar100", _FEDSA_ROWS, tuple(
                Column(f"Cifar100, HtFE{n}", _HTFE8, {"model": f"htfe{n}"}) for n in (2, 3, 5, 8)
            )),
        ), note=_FEDSA_NOTE,
    ),
    "fedsa-table3": PaperGrid(
        "FedSA", "table 3", "local epochs E, with fewer rounds as they grow", (
            Panel("Cifar100", _FEDSA_ROWS, tuple(
                Column(f"Cifar100, E = {e}", _HTFE8, {"local_epochs": e, "rounds": t})
                for e, t in ((1, 1000), (5, 500), (10, 200))
            )),
        ), note=_FEDSA_NOTE,
    ),
    "fedsa-table4": PaperGrid(
        "FedSA", "table 4", "parts of FedSA", (Panel("Cifar100", _FEDSA_PARTS, (Column("Cifar100, HtFE8", _HTFE8),)),),
        note="two of the paper's rows are not shown: which parts they are of is lost",
    ),
    "fedsa-table5": PaperGrid(
        "FedSA", "table 5", "weights of the margin and of the classifiers' calibration", tuple(
            Panel(symbol, _all("FedSA"), tuple(
                Column(f"Cifar100, {symbol} = {v:g}", _HTFE8, {}, {name: float(v)}) for v in _WEIGHTS
            ))
            for symbol, name in (("λ_M", "lam_m"), ("λ_CC", "lam_cc"))
        ),
    ),
    "gfpl-few": PaperGrid(
        "GFPL's claims", "few shots, at three doses, beside as many steps on own features", "classes a client", (
            Panel("FashionMNIST", (*_all("Local", "FedProto"), _FRAME_ALONE, *_VARIANTS_AT_DOSES), (
                Column("FashionMNIST, w̄ = 6", "gfpl-fmnist-few", _OF_GFPL),
                Column("FashionMNIST, w̄ = 8", "gfpl-fmnist-few-w8", _OF_GFPL),
            ), ("accuracy", "all_classes", "foreign", "val")),
        ), 10, note="no paper has this table; a dose is the passes over the pseudo-features of an event",
    ),
    "gfpl-common": PaperGrid(
        "GFPL's claims", "bodies that start from one extractor, at three doses", "the rate of the bodies", (
            Panel("FashionMNIST", (*_all("Local", "FedAvg", "FedProto", "FedPFT"), _FRAME_ALONE, *_VARIANTS_AT_DOSES), (
                Column("FashionMNIST, frozen bodies", "gfpl-fmnist-common-frozen"),
                Column("FashionMNIST, bodies at a tenth", "gfpl-fmnist-common"),
            ), ("accuracy", "all_classes", "foreign", "val")),
        ), 10, note="no paper has this table; clients hold about three of the five classes that the extractor never "
        "saw; a dose is the passes over the pseudo-features of an event",
    ),
    "fedsa-device": PaperGrid(
        "FedSA's setting", "cross-device, every algorithm on Fashion-MNIST", "one architecture, or three", tuple(
            Panel(label, (), (Column(f"FashionMNIST, {label}", name),),
                  ("accuracy", "spread", "all_classes", "foreign", "val", "total_mb"), values=values)
            for label, name, values in (
                ("one architecture", _DEVICE, _HTFL | _ONE_BODY), ("three architectures", f"{_DEVICE}-htmini3", _HTFL)
            )
        ), note=f"100 clients, 10 of them in a round; no paper has this table; {_FEDSA_NOTE}",
    ),
}  # fmt: skip
