"""Algorithms at their limits are other algorithms: for each a row, on few rows and with BatchNorm, stacked and looped.

What a limit needs besides, as a start of its own, is with the algorithm's other tests.
"""

from typing import Any, NamedTuple

import pytest
import torch
from support.helpers import BATCHNORM, DIGITS, EARLY, play, random_federation, simulate
from support.limits import SCORES, SENDS, Limit
from support.numbers import numbers

from fedtune.engine.simulation import Simulation
from fedtune.experiment.scenario import Scenario

FEW, NORM = ("few rows",), ("batch norm",)
DECAY = {"lr": 0.1, "weight_decay": 0.01}
CUT = DECAY | {"clip_norm": 0.3}
HELD = [[0, 1], [1, 2], [0, 1]]  # nobody holds class 3
NETS = ("server/nets", "server/memory", "server/counts")
PROTOS = ("server/protos",)
OWN = ("body", "head")
COMMON = ("server/shared",)


def weights_are_one(sim: Simulation) -> bool:
    return all((t == 1).all() for n, t in numbers(sim.state).items() if "weights." in n)


def all_are_critical(sim: Simulation) -> bool:
    return all(t.all() for t in sim.state.server["masks"].values())


def the_centre_is_the_model(sim: Simulation) -> bool:
    server = sim.state.server
    return all(torch.equal(t[0], server["shared"][n]) for n, t in server["centres"].items())


LIMITS = [
    # a model of one's own beside FedAvg's: alone it is Local's
    *(
        Limit("apfl", f"the common model alone, {mixed} mixed", {"mix": 0.0, "mixed": mixed}, "fedavg", work=work,
              names=("common.", ""), more=OWN, only=only, apart=("train_loss", *apart), scored_as="common")
        for mixed, work, only, apart in (
            ("weights", CUT, FEW, ()),
            ("weights", CUT, NORM, SCORES),  # the mixture has its own running statistics
            ("logits", DECAY, (*FEW, *NORM), ()),
        )
    ),
    *(
        Limit("apfl", f"beside the own model alone, {mixed} mixed", {"mix": 1.0, "mixed": mixed}, "fedavg", work=work,
              names=("common.", ""), more=OWN, apart=("train_loss", *SCORES), scored_as="common")
        for mixed, work in (("weights", CUT), ("logits", DECAY))
    ),
    *(
        Limit("apfl", f"the own model alone, {mixed} mixed", {"mix": 1.0, "mixed": mixed}, "local", work=work,
              names=("common.", ""), more=COMMON, apart=("train_loss", *SENDS), scored_as="mixed")
        for mixed, work in (("weights", CUT), ("logits", DECAY))
    ),
    *(
        Limit("ditto", f"the common model{cut}", {"lam": lam}, "fedavg", work=work, names=("common.", ""), more=OWN,
              apart=("train_loss", *SCORES), scored_as="common")
        for cut, work in (("", DECAY), (", clipped", CUT))
        for lam in (0.7, 0.0)
    ),
    *(
        Limit("ditto", f"no pull{cut}", {"lam": 0.0}, "local", work=work, names=("common.", ""), more=COMMON,
              apart=("train_loss", *SENDS), scored_as="own")
        for cut, work in (("", DECAY), (", clipped", CUT))
    ),
    Limit("pfedme", "the common model goes all the way", {"lam": 4.0, "common_lr": 0.25, "inner_steps": 1}, "fedavg",
          work={"lr": 0.1, "local_epochs": 2, "batch": 3}, names=("common.", ""), more=OWN, exact=False,
          apart=SCORES, scored_as="common"),
    Limit("fedphp", "no transfer", {"lam": 0.0, "mu": 0.8}, "fedavg", more=("kept/",),
          apart=SCORES, scored_as="received"),
    # FedAvg's clients
    Limit("fedprox", "no pull", {"mu": 0.0}, "fedavg"),
    Limit("feddecorr", "no penalty", {"beta": 0.0}, "fedavg"),
    Limit("feddecorr", "mini-batches of one row", {}, "fedavg", work={"batch": 1}, rows=[3, 2], only=FEW),
    Limit("fedlc", "no calibration", {"tau": 0.0}, "fedavg"),
    Limit("fedlc", "as many rows of every class", {"tau": 3.0}, "fedavg", work={"lr": 0.1}, rows=[8, 16, 4],
          exact=False),
    Limit("fedntd", "no distillation", {"beta": 0.0}, "fedavg"),
    Limit("fedntd", "one step, at which both models agree", {"beta": 5.0, "tau": 2.0}, "fedavg",
          work={"local_steps": 1, "lr": 0.1}, exact=False, only=FEW),
    Limit("fedsam", "no step uphill", {"rho": 0.0}, "fedavg"),
    Limit("moon", "no contrast", {"mu": 0.0, "projection": False}, "fedavg", more=("kept/last", "kept/seen")),
    Limit("dbe", "neither part", {"kappa": 0.0, "offset_rate": 0.0}, "fedavg", work=DECAY,
          more=("offset.", "server/mean"), apart=SENDS),
    Limit("fedfa", "no pull and no second step", {"lam": 0.0, "head_lr": 0.0}, "fedavg", more=("server/anchors",),
          apart=SENDS),
    *(
        Limit("fedhkd", f"neither weight, {kind} knowledge", {"lam": 0.0, "gamma": 0.0, "knowledge": kind}, "fedavg",
              more=("server/features", "server/soft"), apart=SENDS)
        for kind in ("final", "running")
    ),
    *(
        Limit("fedrod", f"not balanced{cut}", {"balanced": False}, "fedavg", work=work, held=[[0, 1], [2], [1, 3]],
              more=("personal.",), apart=("train_loss", *SCORES), scored_as="generic")
        for cut, work in (("", {}), (", clipped", {"clip_norm": 0.3}))
    ),
    Limit("fedrod", "balanced classes", {}, "fedavg", rows=[8, 12], exact=False, more=("personal.",),
          apart=("train_loss", *SCORES), scored_as="generic"),
    *(
        Limit("fedala", f"weights stay one, {layers or 'all'} layers", {"weight_lr": 0.0, "layers": layers}, "fedavg",
              work={"weight_decay": 0.01, "batch": 6}, rows=[6, 6, 6],  # B = n: the draws of a later phase are others
              exact=False, more=(*OWN, "weights.", "kept/settled"), apart=("train_loss",), also=weights_are_one)
        for layers in (0, 1, 2)
    ),
    # FedAvg's server
    Limit("fedadam", "plain SGD at rate one", {"rule": "sgd", "beta1": 0.0, "server_lr": 1.0}, "fedavg", exact=False,
          more=("server/first", "server/second")),
    Limit("fedavgm", "no momentum", {"beta1": 0.0, "server_lr": 1.0}, "fedavg", exact=False,
          more=("server/first", "server/second")),
    Limit("fedavgm", "FedAdam's rule without a second moment", {"beta1": 0.8, "server_lr": 0.6},
          "fedadam", {"beta1": 0.8, "server_lr": 0.6, "rule": "sgd"}, less=("server/second",)),
    Limit("fednova", "equal steps", {"server_momentum": 0.0}, "fedavg", work={"local_steps": 4, "lr": 0.1},
          rows=[5, 9, 7, 6], exact=False, more=("server/moves",), apart=("up_", "comm_mb")),
    Limit("fednova", "equal steps, with momentum", {"server_momentum": 0.8}, "fedavgm", {"beta1": 0.8},
          work={"local_steps": 4, "lr": 0.1}, rows=[5, 9, 7, 6], exact=False, more=("server/moves",),
          less=("server/first", "server/second"), apart=("up_", "comm_mb")),
    Limit("fednova", "factors on a part's rate cancel", {}, "fedavg",
          work={"local_steps": 3, "lr": 0.1, "body_lr_scale": 0.2}, rows=[6, 8], exact=False, more=("server/moves",),
          apart=("up_", "comm_mb")),
    Limit("scaffold", "one client", {}, "fedavg", work={"lr": 0.1}, rows=[13], rounds=4, exact=False,
          more=("kept/control", "server/control"), apart=SENDS),
    Limit("cfl", "nothing splits", {"eps1": 0.0, "eps2": 0.01, "start": 0}, "fedavg",
          more=("server/cluster", "server/models"), constant={"clusters_occupied": 1}),
    Limit("fesem", "one cluster", {"clusters": 1}, "fedavg", rounds=4, more=("server/cluster", "server/centres"),
          constant={"clusters_occupied": 1}, also=the_centre_is_the_model),
    Limit("fedcac", "no critical numbers", {"tau": 0.0}, "fedavg", more=("server/masks", "server/own"),
          apart=("up_bytes", "comm_mb")),
    Limit("fedcac", "all are critical to equal clients", {"tau": 1.0}, "fedavg",
          work={"lr": 0.1, "weight_decay": 0.1, "participation": 1.0}, rows=[6, 6, 6], exact=False, only=FEW,
          more=("server/masks", "server/own"), apart=("up_bytes", "comm_mb"), also=all_are_critical),
    # FedAvg, scored otherwise
    Limit("fedavgft", "no tuning", {"tune_epochs": 0}, "fedavg"),
    Limit("fedavgft", "whatever it tunes", {}, "fedavg", apart=SCORES, differs=("val_loss",)),
    Limit("fedbabu", "with the head, no tuning", {"update": "all", "tune_epochs": 0}, "fedavg"),
    Limit("fedbabu", "with the head", {"update": "all", "tune_epochs": 2}, "fedavgft", {"tune_epochs": 2}),
    *(
        Limit("perfedavg", f"no inner step, Hessian by {hessian}",
              {"inner_lr": 0.0, "hessian": hessian, "batches": "same"}, "fedavgft", {"tune": "all"},
              work={"tune_epochs": 2, "tune_lr": 0.1})
        for hessian in ("none", "difference")
    ),
    Limit("perfedavg", "no inner step, on the second mini-batch", {"inner_lr": 0.0}, "fedavg",
          work={"batch": 6, "local_steps": 3}, rows=[6, 6], exact=False, only=FEW),  # B = n: all rows
    Limit("knnper", "no neighbours", {"lam": 0.0}, "fedavg", more=("memory.",)),
    Limit("knnper", "whatever neighbours say", {"lam": 0.7}, "fedavg", more=("memory.",), apart=SCORES,
          differs=("val_loss",)),
    Limit("ccvr", "no virtual features", {"virtual": 0}, "fedavg"),
    *(
        Limit("ccvr", f"whatever it calibrates, statistics {rule}",
              {"virtual": 12, "head_epochs": 2, "head_batch": 8}, "fedavg", work={"batch_norm": rule}, held=HELD,
              more=("server/calibrated", "server/raised"), apart=("up_", "comm_mb", *SCORES), differs=("val_loss",),
              scored_as="averaged")
        for rule in ("averaged", "personal")
    ),
    *(
        Limit("fedensemble", f"whatever {members} predict, statistics {rule}", {"members": members}, "fedavg",
              work={"batch_norm": rule}, rows=[5, 9, 7, 6], held=[[0, 1], [1, 2], [0, 3], [2, 3]],
              more=("server/members", "server/votes"), apart=(*sends, *SCORES), scored_as="average")
        for members in ("participants", "all")
        for rule, sends in (("averaged", ()), ("personal", ("up_", "comm_mb")))
    ),
    # generators that nobody uses stay as they began
    Limit("fedgen", "neither weight", {"gen_weight": 0.0, "kl_weight": 0.0} | EARLY["fedgen"], "fedavg", more=NETS,
          still=("server/nets",)),
    Limit("fedgenp", "neither weight", {"a": 0.0, "b": 0.0} | EARLY["fedgenp"], "fedavg",
          more=(*NETS, "server/best", "server/stopped", "server/trained"), still=("server/nets",),
          constant={"generators_stopped": 0}),
    *(
        Limit("fedpa", f"no weight, {kind} prototypes",
              {"lam_ge": 0.0, "lam_po": 0.0, "gamma_ad": 0.0, "prototypes": kind} | EARLY["fedpa"], "fedavg",
              more=(*NETS, *PROTOS))
        for kind in ("final", "running")
    ),
    *(
        Limit("fedpa", f"neither prototypes nor schedules, {what}",
              {"lam_ge": 7.0, "lam_po": 0.0, "gamma_ad": 0.0, "gamma_fid": 1.0, "gamma_div": 1.0}
              | {"pairs": "all", "reduce": "sum"}
              | {n: 1.0 for n in ("ge_decay", "po_decay", "fid_decay", "div_decay", "ad_decay")},
              "fedgen", {"gen_weight": 7.0, "kl_weight": 0.0, "gen_decay": 1.0},
              work=EARLY["fedpa"] | {"gen_weight_decay": 0.01, "gen_lr_decay": 0.9} | more, more=PROTOS)
        for what, more in (
            ("as the text", {}),
            ("otherwise", {"weighing": "mean", "noise_law": "uniform", "label_law": "present"}),
        )
    ),
    # a part that stays with its client, or all of it
    Limit("fedavg", "one client", {}, "local", rows=[13], names=("server/shared/", "client 0/"), apart=SENDS),
    Limit("fedper", "one client", {}, "local", rows=[13], names=("server/shared/", "client 0/"), apart=SENDS),
    Limit("fedbn", "no BatchNorm", {}, "fedavg", only=FEW),
    Limit("lgfedavg", "everything is shared", {"averages": "model"}, "fedavg"),
    Limit("fedas", "no alignment, weighed by rows", {"align_epochs": 0, "weighing": "rows"}, "fedper",
          more=("kept/protos", "kept/seen")),
    Limit("gpfl", "neither guidance nor valve", {"guidance": False, "valve": False}, "fedper", more=("kept/share",)),
    Limit("fedpac", "neither pull nor mixtures", {"lam": 0.0, "mixes": False}, "fedrep", work={"head_epochs": 2},
          more=("server/heads", "server/place", *PROTOS)),
    Limit("fedamp", "no pull", {"lam": 0.0}, "local", more=("server/models", "server/sent", *COMMON), apart=SENDS),
    Limit("fedfomo", "no candidates", {"candidates": 0, "held_out": 0.0}, "local",
          more=("worth.", "server/models", "server/sent", "server/trust", *COMMON), apart=SENDS),
    *(
        Limit("gfpl", f"no pull and no event: {values}", values, "local",
              more=("etf.", "proj.", "server/counted", "server/due", "server/mixtures"))
        for values in (
            {"lam": 0.0, "start": 40},
            {"lam": 0.0, "pfg": False},
            {"dcs": False, "pfg": False},
            {"dcs": False, "start": 40},
        )
    ),
    # what the others tell is heard of no more
    *(
        Limit("feddistill", f"no distillation, {kind} knowledge", {"lam": 0.0, "knowledge": kind}, "local",
              more=("server/told",), apart=SENDS)
        for kind in ("final", "running")
    ),
    Limit("fedproto", "no pull", {"lam": 0.0}, "local", more=PROTOS, apart=(*SENDS, *SCORES), scored_as="head"),
    *(
        Limit("fedsa", f"no term, {kind} prototypes",
              {"lam_r": 0.0, "lam_m": 0.0, "lam_cc": 0.0, "prototypes": kind}, "local",
              more=("server/anchors", "server/local", *PROTOS), apart=(*SENDS, *SCORES), scored_as="head")
        for kind in ("running", "final")
    ),
    Limit("fedtgp", "no pull", {"server_epochs": 3, "server_lr": 0.05, "lam": 0.0}, "local",
          more=("server/net/", *PROTOS), apart=(*SENDS, *SCORES), scored_as="head"),
    *(
        Limit("fedtgp", f"no server epochs, weighed by {weighting}", {"server_epochs": 0}, "fedproto",
              work={"lam": 4.0, "weighting": weighting, "participation": 0.5}, rows=[8, 6, 7, 5],
              held=[[0, 1], [1, 2], [2], [3]], rounds=4, more=("server/net/",), apart=apart)
        for weighting, apart in (("rows", ()), ("clients", ("up_ints", "up_bytes", "comm_mb")))
    ),
]  # fmt: skip


def ways(limit: Limit, number: int) -> list[Any]:
    """A row on its scenarios, stacked and looped.  README's command has one of them, in turn."""
    every = [(limit, name, how) for name in limit.only for how in ("stack", "loop")]
    kept = number % 2 + (len(every) == 4)  # few rows looped, or batch norm stacked
    return [
        pytest.param(*way, id="-".join(map(str, way)), marks=[pytest.mark.long] * (i != kept))
        for i, way in enumerate(every)
    ]


@pytest.mark.parametrize(
    ("limit", "scenario", "executor"), [way for number, limit in enumerate(LIMITS) for way in ways(limit, number)]
)
def test_at_its_limit_it_is_the_other_algorithm(limit: Limit, scenario: str, executor: str) -> None:
    limit.check(scenario, executor)


class Parting(NamedTuple):
    """An algorithm that in its first rounds is another one, and then is not: all of these parts are others."""

    name: str
    values: dict
    rounds: int
    other: str = "fedavg"
    parts: tuple[str, ...] = ("head.",)
    rows: tuple[int, ...] = (5, 9, 7)
    exact: bool = True


PARTINGS = [
    Parting("dbe", {"lr": 0.1}, 1),
    Parting("moon", {"projection": False}, 1, rows=(5, 9, 7, 6)),
    Parting("scaffold", {"momentum": 0.5}, 1, rows=(7, 7, 7), exact=False),
    *(
        Parting("fedhkd", {"least_share": 0.0} | weights, 1, rows=(8, 12))
        for weights in ({"lam": 9.0, "gamma": 0.0}, {"lam": 0.0, "gamma": 9.0}, {"soft": "kl", "lam": 9.0})
    ),
    *(
        Parting("fedgen", EARLY["fedgen"] | {"gen_weight": a, "kl_weight": b}, 1, parts=("head.", "weight"))
        for a, b in ((3.0, 0.0), (0.0, 3.0))
    ),
    Parting("fedfa", {"lam": 0.0}, 0),
    Parting("fedfa", {"head_lr": 0.0}, 0),
    *(
        Parting("fedsa", {"lam_r": 0.0, "lam_m": 0.0, "lam_cc": 0.0} | {term: 1.0}, 0, "local")
        for term in ("lam_r", "lam_m", "lam_cc")
    ),
]


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("scenario", [DIGITS, BATCHNORM], ids=["few rows", "batch norm"])
@pytest.mark.parametrize("case", PARTINGS, ids=lambda c: f"{c.name}-{c.values}")
def test_after_its_first_rounds_it_is_the_other_no_more(case: Parting, scenario: Scenario, executor: str) -> None:
    work = {n: v for n, v in case.values.items() if n in ("lr", "momentum")}
    data = random_federation(case.rows)
    mine, other = (
        simulate(name, scenario, data, executor=executor, **values)
        for name, values in ((case.name, case.values), (case.other, work))
    )

    def apart() -> dict[str, float]:
        own, others = numbers(mine.state), numbers(other.state)
        return {n: (own[n] - t).abs().max().item() for n, t in others.items() if t.is_floating_point()}

    rows, wanted = play(mine, case.rounds), play(other, case.rounds)
    assert [r["train_loss"] for r in rows] == pytest.approx([r["train_loss"] for r in wanted], rel=0, abs=1e-12)
    assert max(apart().values()) <= (0 if case.exact else 1e-12)
    play(mine, 1), play(other, 1)
    assert all(far > 0 for n, far in apart().items() if any(part in n for part in case.parts))


class Cost(NamedTuple):
    """What a client sends in each round besides FedAvg's, in numbers; it receives the same."""

    name: str
    values: dict
    floats: int = 0
    ints: int = 0
    own: dict = {}  # columns of its own in the last round


COSTS = [
    Cost("cfl", {"eps1": 10.0, "eps2": 0.01, "start": 0}, own={"clusters_occupied": 3}),
    Cost("feddyn", {}),
    Cost("fedadam", {}),
    Cost("fedavgm", {}),
    Cost("fedphp", {}),
    Cost("fesem", {}),
    Cost("fednova", {}, floats=1),  # how much its steps weigh
    # statistics, which are not averaged: 6 and 16 channels, mean and variance, and two counters
    *(Cost("fedensemble", {"members": who, "batch_norm": "personal"}, 44, 2) for who in ("participants", "all")),
]


@pytest.mark.parametrize("case", COSTS, ids=lambda c: f"{c.name}-{c.values}")
def test_it_sends_what_fedavg_sends_and_so_much_more(case: Cost) -> None:
    data, work = random_federation([5, 9, 7, 6]), {n: v for n, v in case.values.items() if n == "batch_norm"}
    rows, plain = (
        play(simulate(name, BATCHNORM, data, **values), 3)
        for name, values in ((case.name, case.values), ("fedavg", work))
    )
    more = {"up_floats": 4 * case.floats, "up_ints": 4 * case.ints, "up_bytes": 4 * 8 * (case.floats + case.ints)}
    for row, one in zip(rows, plain, strict=True):
        for n in (n for n in one if n.startswith(("up_", "down_"))):
            assert row[n] == one[n] + more.get(n, 0), n
        assert row["comm_mb"] > one["comm_mb"] if case.floats else row["comm_mb"] == one["comm_mb"]
    assert {n: rows[-1][n] for n in case.own} == case.own


BODY, HEAD = 64 * 128 + 128 + 128 * 12 + 12, 4 * (12 + 1)  # numbers of the perceptron's two parts
MODEL = BODY + HEAD


class Sent(NamedTuple):
    """Numbers that three clients send and receive together, by round; they hold 2, 3 and 1 of four classes."""

    name: str
    values: dict
    up: list[int]
    down: list[int]
    ints: int = 3  # sent by all: how many rows each has


SENT = [
    Sent("local", {}, [0, 0], [0, 0], 0),
    Sent("fedper", {}, [3 * BODY], [3 * BODY]),
    Sent("lgfedavg", {}, [3 * HEAD], [3 * HEAD]),
    Sent("scaffold", {}, [6 * MODEL] * 2, [6 * MODEL] * 2),
    Sent("dbe", {}, [3 * MODEL + 36, 3 * MODEL, 3 * MODEL], [3 * MODEL, 3 * MODEL + 36, 3 * MODEL + 36]),
    Sent("fedfa", {}, [3 * (MODEL + 4 * 12)] * 2, [3 * (MODEL + 4 * 12)] * 2),
    Sent("gpfl", {}, [3 * (BODY + 4 * 12 + 2 * (144 + 36))], [3 * (BODY + 4 * 12 + 2 * (144 + 36))]),
    *(  # the small net, of d features
        Sent("fedmrl", {"width": d / 12}, [numbers_of_all], [numbers_of_all])
        for d in (3, 6)
        for numbers_of_all in [3 * (64 * 128 + 128 + 129 * d + 4 * (d + 1))]
    ),
    Sent("fedgh", {}, [6 * 12], [3 * HEAD], 0),
    Sent("fedktl", {"server_epochs": 3, "server_batch": 8, "latents": 8}, [6 * 4] * 2, [0, 3 * 4 * (64 + 8)], 0),
    *(  # rows only if they weigh
        Sent("fedtgp", {"weighting": how, "server_epochs": 3}, [6 * 12] * 2, [0, 3 * 4 * 12], ints)
        for how, ints in (("clients", 0), ("rows", 6))
    ),
    *(  # no margin where none is used
        Sent("fedsa", values, [6 * 12] * 2, [3 * (4 * 12 + margin)] * 2, 6)
        for values, margin in (({}, 1), ({"lam_m": 0.0}, 0), ({"margin": "none"}, 0))
    ),
]


@pytest.mark.parametrize("case", SENT, ids=lambda c: f"{c.name}-{c.values}")
def test_it_sends_and_receives_so_many_numbers(case: Sent) -> None:
    data = random_federation([6, 9, 4], [[0, 1], [1, 2, 3], [3]])
    for row, up, down in zip(
        play(simulate(case.name, data=data, **case.values), len(case.up)), case.up, case.down, strict=True
    ):
        assert (row["up_floats"], row["down_floats"], row["up_ints"], row["down_ints"]) == (up, down, case.ints, 0)
