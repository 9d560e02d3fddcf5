"""GFPL: alignment to the frame, what is exchanged, and when."""

from ray import tune

from fedtune.tuning.space import lines, tunable
from trainables.gfpl import GFPL

# t1 <= 14 and S_T <= 10 together bring the first event by round 20, wherever in the space
default = tunable(GFPL, "lam", "components", "threshold", "pseudo", start=(1, 14), every=(1, 10))
# Figures 3, 4 and 6 vary one at a time around λ = 2, n = 4, S_C = 1, S_T = 10, t1 = 10; their grids are not printed.
# S_C goes on to 300, because at 1 hardly anything fuses (spec 3.6).  Tables 1 and 2: the ablations.
paper = lines(
    lam=[2.0, 0.0, 0.5, 1.0, 5.0, 10.0],
    components=[1, 2, 8, 16],
    threshold=[0.1, 3.0, 10.0, 30.0, 100.0, 300.0],
    every=[1, 2, 5, 15, 20],
    start=[1, 20, 30, 40],
    dcs=[False],
    pfg=[False],
)
wide = tunable(
    GFPL, "lam", "components", "threshold", "pseudo", "every", "start", "retrain_epochs", "retrain_lr",
    "variance_floor", "linkage", "weighing", "order", "retrain", "clip", "predictor", "momentum",
    lr=(1e-3, 0.3), local_epochs=(1, 5),
)  # fmt: skip
# for `fedtune tabulate`: a grid that searches are simulated on (docs/simulate.md)
table = {
    "lam": tune.choice([0.5, 2.0, 5.0, 10.0, 20.0]),
    "components": tune.choice([1, 4, 16]),
    "start": tune.choice([1, 3, 6, 10, 14]),
    "lr": tune.choice([0.01, 0.03, 0.1, 0.3]),
}
