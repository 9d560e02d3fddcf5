"""GFPL: alignment to the frame, what is exchanged and when, and how long heads are retrained on it."""

from ray import tune

from fedtune.trainables.gfpl import GFPL
from fedtune.tuning.space import lines, tunable, when, with_shared

# t*, the first event, takes t1's place: pairs (t1, S_T) give the same schedule again and again, and t* <= 20 brings the
# first event by round 20, wherever in the space
default = with_shared(
    GFPL,
    "lam",
    "components",
    "threshold",
    "pseudo",
    "retrain_epochs",
    "retrain_lr",
    first=(1, 20),
    every=(1, 10),
)
# Figures 3, 4 and 6 vary one at a time around λ = 2, n = 4, S_C = 1, S_T = 10, t1 = 10; their grids are not printed.
# S_C goes on to 300, because at 1 hardly anything fuses (spec 3.6).  Tables 1 and 2: the ablations; then what the text
# leaves open: algorithm 2's order, how long and how fast heads are retrained, and on what else.
paper = lines(
    lam=[2.0, 0.0, 0.5, 1.0, 5.0, 10.0],
    components=[1, 2, 8, 16],
    threshold=[0.1, 3.0, 10.0, 30.0, 100.0, 300.0],
    every=[1, 2, 5, 15, 20],
    start=[1, 20, 30, 40],
    dcs=[False],
    pfg=[False],
    order=["interleaved"],
    retrain_epochs=[5, 10, 50],
    retrain_lr=[1e-3, 0.1],
    retrain_on=["own", "none"],
)
_events = tunable(
    GFPL,
    "components",
    "threshold",
    "pseudo",
    "first",
    "every",
    "retrain_epochs",
    "retrain_lr",
    "variance_floor",
    "linkage",
    "weighing",
    "order",
    "retrain_on",
    "clip",
)
_frame = tunable(GFPL, "lam", "predictor", "retrain")
wide = with_shared(GFPL, "dcs", "pfg", wide=True) | {
    **{name: when(domain, pfg=True) for name, domain in _events.items()},
    "lam": when(_frame["lam"], dcs=True),
    "predictor": when(_frame["predictor"], dcs=True),
    # proj alone moves nothing that the classifier reads
    "retrain": when(_frame["retrain"], pfg=True, dcs=True, predictor=("etf", "sum")),
}
# for `python -m fedtune.analysis.tabulate`: a grid that searches are simulated on (docs/background/simulate.md).
# Not t1, of which one to ten are the same schedule with S_T = 10, and no more components than 24 rows a class allow:
# every configuration acts on its own.
table = {
    "lam": tune.choice([0.5, 2.0, 5.0, 10.0, 20.0]),
    "components": tune.choice([1, 2, 4]),
    "first": tune.choice([1, 3, 6, 10, 14]),
    "lr": tune.choice([0.01, 0.03, 0.1, 0.3]),
}
