"""FedGenP's figure 3: two classes in the plane, three clients that see them differently, and what the server learns.

    python -m fedtune.analysis.fedgenp_toy [--rounds 40,100] [--seed 0] [--output fedgenp_toy.png]
    python -m fedtune.analysis.fedgenp_toy --seeds 10 --write analysis/results

The distribution.  A wheel is turned by an angle that is uniform on [0, 2π).  Client k sits at 1 from the hub, at 120° ·
k on the wheel; its class 0 lies 0.6 clockwise of that along the wheel's tangent, its class 1 as far the other way.  So
each client parts its classes by another line through the hub, and beyond its own third each such line is wrong about
half of what the others hold: that is the conflict.  Rows are normal around their class's centre, with standard
deviations along the spoke and the tangent of (0.42, 0.12), (0.21, 0.21) and (0.12, 0.27) for the three clients.  Every
client has 20 training, 20 validation and 200 test rows of each class.  The paper shows its clouds and names no
distribution; this is ours.

The runs.  The mlp of fedtune.nn, 5 local steps of 32 rows, SGD at 0.01 without momentum; FedGenP at its defaults
but rectify=True, as the mlp's features have a ReLU.  Both start from the same weights and train on the same batches.

Scale and steps were chosen by FedAvg alone, over seeds 0 to 2 and four candidates: after 40 rounds it should be short
of what it reaches after 100, as in the paper (at twice the size, or with 20 steps, it is done by then and there is
nothing to see; on the first distribution tried, the two did not differ).  Nothing of FedGenP was tuned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.data.federation import Federation, Split
from fedtune.engine.simulation import Simulation
from fedtune.experiment.algorithm import Model
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.user_code.command import Parser, guarded

CLIENTS, ROWS = 3, {"train": 20, "val": 20, "test": 200}  # rows of each class at each client
RADIUS, OFFSET = 1.0, 0.6
SPREAD = np.array([(0.42, 0.12), (0.21, 0.21), (0.12, 0.27)])  # along the spoke, along the tangent
PLAYED: dict[str, dict[str, Any]] = {"fedavg": {}, "fedgenp": {"rectify": True}}
TITLES = {"fedavg": "FedAvg", "fedgenp": "FedGenP"}
COLOURS, PALE, MARKS = ("#0072B2", "#D55E00"), ("#CFE5F2", "#F9DFCF"), ("o", "^")  # Okabe and Ito's
REACH, CELLS = 2.3, 241  # of the pictures: half-width, grid points a side


class Snapshot(NamedTuple):
    """The global model of one algorithm after some rounds."""

    algorithm: str
    rounds: int
    accuracy: float  # on all clients' test rows together
    margin: np.ndarray  # logit of class 1 minus that of class 0 on the grid, [CELLS, CELLS]


def draw(seed: int) -> Federation:
    """Three clients' rows drawn as the module says."""
    rng = randomness.numpy_stream(seed, "fedgenp toy")
    turn = rng.uniform(0, 2 * np.pi)
    x: list[np.ndarray] = []
    y: list[np.ndarray] = []
    splits, start = [], 0
    for n in ROWS.values():
        table = start + np.arange(CLIENTS * 2 * n).reshape(CLIENTS, 2 * n)
        splits.append(Split(table, np.full(CLIENTS, 2 * n)))
        start += table.size
        for k in range(CLIENTS):
            angle = turn + 2 * np.pi * k / CLIENTS
            spoke = np.array([np.cos(angle), np.sin(angle)])
            axes = np.stack([spoke, [-spoke[1], spoke[0]]])  # spoke and tangent
            for label in (0, 1):
                centre = np.array([RADIUS, OFFSET * (2 * label - 1)])
                x.append((centre + SPREAD[k] * rng.normal(size=(n, 2))) @ axes)
                y.append(np.full(n, label))
    images = np.concatenate(x).astype(np.float32)[:, None, None]  # [rows, 1, 1, 2]
    return Federation(images, np.concatenate(y), 2, *splits)


def scenario(rounds: int) -> Scenario:
    """Little local work; the global model scored on all rows together."""
    return Scenario(
        model="mlp",
        clients=CLIENTS,
        rounds=rounds,
        evaluation="pooled",
        all_classes=0,
        batch=32,
        local_steps=5,
        lr=0.01,
        momentum=0.0,
    )


def grid() -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the pictures' points, [CELLS, CELLS] each."""
    line = np.linspace(-REACH, REACH, CELLS)
    across, up = np.meshgrid(line, line)
    return across, up


def margin(sim: Simulation) -> np.ndarray:
    """How much more the global model takes each point of the grid for class 1 than for class 0."""
    points = torch.tensor(np.stack(grid(), -1).reshape(-1, 1, 1, 2), dtype=torch.float32)
    model = Model(sim.state.groups[0].net, sim.state.server["shared"])
    with torch.no_grad():
        logits = model.head(model.body(points))
    return (logits[:, 1] - logits[:, 0]).reshape(CELLS, CELLS).numpy()


def run(rounds: Sequence[int], seed: int) -> list[Snapshot]:
    """Both algorithms' global models after each of these numbers of rounds."""
    data, out = draw(seed), []
    for name, config in PLAYED.items():
        sim = Simulation(Experiment(algorithm=name, scenario=scenario(max(rounds)), seed=seed), config, data)
        for t in range(1, max(rounds) + 1):
            row = sim.step()
            if t in rounds:
                out.append(Snapshot(name, t, row["test_acc"], margin(sim)))
    return out


def figure(data: Federation, snapshots: Sequence[Snapshot]) -> Figure:
    """First row: what each client trains on.  Second row: where the global models part the classes."""
    fig = Figure(figsize=(max(11.0, 2.9 * len(snapshots)), 7.5), layout="constrained")
    FigureCanvasAgg(fig)
    halves: Any = fig.subfigures(2, 1)
    above, below = halves
    clients = above.subplots(1, CLIENTS, sharex=True, sharey=True)
    for k, ax in enumerate(clients):
        _points(ax, data, data.train.rows[k], 16, 0.9)
        _frame(ax, f"client {k + 1}: n = {len(data.train.rows[k])} training rows", k == 0)
    clients[0].legend(loc="best", fontsize=8, framealpha=0.9)
    across, up = grid()
    panels = below.subplots(1, len(snapshots), sharex=True, sharey=True, squeeze=False)[0]
    for i, (ax, shot) in enumerate(zip(panels, snapshots, strict=True)):
        ax.contourf(across, up, shot.margin, levels=[-np.inf, 0, np.inf], colors=PALE)
        ax.contour(across, up, shot.margin, levels=[0], colors="black", linewidths=1.4)
        _points(ax, data, data.train.rows.ravel(), 7, 0.8)
        _frame(ax, f"{TITLES[shot.algorithm]}, {shot.rounds} rounds: {shot.accuracy:.1%}", i == 0)
    above.suptitle("Two classes, three clients: what each holds")
    n = data.test.rows.size
    below.suptitle(f"The global model by algorithm and rounds, with its accuracy on all clients' n = {n} test rows")
    return fig


def _points(ax: Axes, data: Federation, rows: np.ndarray, area: float, alpha: float) -> None:
    for label in (0, 1):
        points = data.x[rows[data.y[rows] == label]].reshape(-1, 2)
        colour, mark, name = COLOURS[label], MARKS[label], f"class {label}"
        ax.scatter(points[:, 0], points[:, 1], area, colour, marker=mark, alpha=alpha, linewidths=0, label=name)


def _frame(ax: Axes, title: str, first: bool) -> None:
    ax.set_title(title, fontsize=10)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xlabel="$x_1$")
    if first:
        ax.set_ylabel("$x_2$")


def _rounds(text: str) -> list[int]:
    try:
        rounds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        rounds = [0]
    if rounds[0] < 1 or len(rounds) > 4:
        raise UserError(f"--rounds needs one to four whole numbers of at least 1, with commas, but got {text!r}")
    return rounds


def _writable(text: str) -> Path:
    path, endings = Path(text), sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in endings:
        raise UserError(f"--output needs a name that ends in one of {', '.join(endings)}, but got {text!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"--output needs a file in a folder that exists, but got {text!r}")
    return path


@guarded
def main(argv: list[str] | None = None) -> int:
    """Play, draw the first seed, and print the accuracies of all."""
    parser = Parser(prog="python -m fedtune.analysis.fedgenp_toy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", default="40,100", metavar="N,N", help="when to look (default 40,100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of data, start and draws (default 0)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many, of which the first is drawn (1)")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="folder of a table of the accuracies, fedgenp-toy.csv"
    )
    parser.add_argument("--output", default="fedgenp_toy.png", metavar="FILE", help="the picture (fedgenp_toy.png)")
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = parser.parse_args(argv)
    rounds, path = _rounds(args.rounds), _writable(args.output)
    if args.seed < 0:
        raise UserError(f"--seed must not be negative, but got {args.seed}")
    if args.seeds < 1:
        raise UserError(f"--seeds must be at least 1, but got {args.seeds}")
    torch.set_num_threads(1)
    by_seed, data = {args.seed + i: run(rounds, args.seed + i) for i in range(args.seeds)}, draw(args.seed)
    try:
        figure(data, by_seed[args.seed]).savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"--output {path} cannot be written: {error}") from error
    rows = [(shot.algorithm, shot.rounds, seed, shot.accuracy) for seed, shots in by_seed.items() for shot in shots]
    print(
        f"{'algorithm':9} {'rounds':>6} {'seed':>4} {'accuracy':>8}   on all clients' {data.test.rows.size} test rows"
    )
    for algorithm, after, seed, accuracy in rows:
        print(f"{algorithm:9} {after:6} {seed:4} {accuracy:8.4f}")
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(rows, columns=["algorithm", "rounds", "seed", "accuracy"])
        table.to_csv(args.write / "fedgenp-toy.csv", index=False)
    print(f"figure: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
