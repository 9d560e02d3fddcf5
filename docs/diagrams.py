"""The pictures of how fedtune works: drawn by hand, from the pages' tables and the code's own values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from charts import Axis, across, interval, page_table
from drawing import Picture

from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.experiment import registry
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import shared


def block(
    p: Picture,
    x: float,
    y: float,
    wide: float,
    high: float,
    title: str,
    *lines: str,
    colour: str = "axis",
    code: bool = False,
) -> None:
    """A box with a title and lines, in the middle of it."""
    p.box(x, y, wide, high, colour, 0.12, colour, 6)
    first = y + high / 2 + 5 - 8 * len(lines)
    p.text(x + wide / 2, first, title, anchor="middle", bold=True)
    for i, line in enumerate(lines, 1):
        p.text(x + wide / 2, first + 16 * i, line, "note", "middle", code=code)


def round_() -> Picture:
    """A round of FedPA on a time line: the server sends, clients train and compute prototypes, the server averages and
    trains its generator, and the models are evaluated; local training takes more than half."""
    _, rows = page_table("background/engine.md", "part")
    steps, optimiser, prototypes, generator, evaluation = (float(ms) for _, ms in rows)
    p = Picture(
        266,
        f"A round of FedPA takes {sum(float(ms) for _, ms in rows):.0f} ms",
        "clients are computed at once, as one stack, on one core",
    )
    x = Axis(0, steps + optimiser + prototypes + generator + evaluation, 70, 470)
    across(p, x, (0, 100, 200, 300), 48, 226, "milliseconds")
    lanes = {"server": 78, "clients": 134, "scores": 190}
    for lane, y in lanes.items():
        p.text(0, y + 4, lane, bold=True)
    a, b = steps + optimiser, steps + optimiser + prototypes
    parts = (
        (0, a, "clients", "local training", "blue"),
        (a, b, "clients", "prototypes", "green"),
        (b, b + generator, "server", "generator", "amber"),
        (b + generator, x.high, "scores", "evaluation", "pink"),
    )
    for start, end, lane, words, colour in parts:
        p.box(x(start) + 1, lanes[lane] - 17, x(end) - x(start) - 2, 34, colour, 0.3, colour, 3)
        inside = x(end) - x(start) > 90
        p.text(
            (x(start) + x(end)) / 2 if inside else x(start) - 6,
            lanes[lane] + 4,
            words,
            anchor="middle" if inside else "end",
        )
    p.arrow((x(0) + 3, lanes["server"] + 3), (x(0) + 3, lanes["clients"] - 18), "ink")
    p.text(x(0) + 10, lanes["server"] + 4, "models, down")
    p.arrow((x(b), lanes["clients"] - 18), (x(b), lanes["server"] + 18), "ink")
    p.text(x(b) - 8, lanes["clients"] - 24, "up: models, prototypes", anchor="end")
    return p


UNEVEN = "digits-dir0.1"


def stack() -> Picture:
    """Twenty clients' steps in a round, ordered by their number: in each step all clients that are left are computed at
    once, and they are always the first ones."""
    from fedtune.data import datasets
    from fedtune.experiment import partitioning

    scenario = SCENARIOS[UNEVEN]
    counts = partitioning.partition(datasets.load("digits"), scenario, 0).train.counts
    steps = sorted((math.ceil(n / scenario.batch) for n in counts), reverse=True)
    p = Picture(
        11 * len(steps) + 92,
        "All clients that are left take a step at once",
        f"{UNEVEN}: a line is a client, a bar its steps in a round",
    )
    x, top, shown = Axis(0, max(steps), 40, 476), 46, int(np.median(steps)) - 1
    for k, n in enumerate(steps):
        p.text(34, top + 11 * k + 9, f"{n}", "note", "end", size=10)
        p.box(x(0), top + 11 * k, x(n) - x(0), 9, "blue", 0.35)
    active, foot = sum(n > shown for n in steps), top + 11 * len(steps)
    p.box(x(shown), top - 2, x(shown + 1) - x(shown), 11 * active + 1, "blue")
    p.arrow((x(shown + 0.5), foot + 12), (x(shown + 0.5), top + 11 * active + 2), "ink")
    p.text(258, foot + 27, f"step {shown + 1} is one call, over weights [{active} clients, out, in]", anchor="middle")
    p.text(476, foot + 8, "steps →", "note", "end")
    return p


def cluster() -> Picture:
    """Who talks to whom: you submit a job to Ray on the head node, which starts the driver; the driver gives trials to
    workers, which report each round; all of them use one shared folder, and a browser sees the dashboard."""
    p = Picture(346, "Who talks to whom on a cluster")
    block(p, 2, 58, 118, 78, "your machine", "ray job submit", "a browser", colour="green")
    p.box(176, 30, 302, 118, "axis", 0.06, "axis", 8)
    p.text(188, 48, "head node", "note")
    block(p, 190, 58, 112, 78, "Ray", "jobs :8265", "dashboard", colour="pink")
    block(p, 352, 58, 114, 78, "driver", "searcher, ASHA", "one core", colour="blue")
    p.arrow((120, 97), (190, 97))
    p.text(148, 90, "job", "note", "middle")
    p.arrow((302, 97), (352, 97))
    p.text(326, 90, "starts", "note", "middle")
    for i in range(3):
        block(p, 176 + 105 * i, 202, 92, 56, f"worker {i + 1}", "trials", colour="amber")
        p.arrow((222 + 105 * i, 200), (382 + 26 * i, 138), both=True)
        p.arrow((222 + 105 * i, 260), (222 + 105 * i, 293), both=True)
    p.text(0, 176, "down: a configuration,", "note")
    p.text(0, 192, "or stop", "note")
    p.text(0, 214, "up: a line of metrics", "note")
    p.text(0, 230, "for every round", "note")
    block(p, 2, 294, 476, 48, "shared folder", "of driver and workers: checkpoints, logs, tables", colour="axis")
    return p


DEATHS = (  # what happens, what becomes of finished and of running trials, what one does
    ("a worker dies", "kept", "go on", "nothing"),
    ("a node dies", "kept", "go on", "nothing"),
    ("the driver dies", "kept", "go on", "fedtune resume"),
    ("Ctrl-C, SIGTERM", "kept", "go on", "fedtune resume"),
    ("Ray dies", "kept", "go on", "fedtune resume"),
    ("the disk is full", "kept", "go on", "fedtune resume"),
    ("a damaged checkpoint", "kept", "tried again", "nothing"),
    ("GPU memory is short", "kept", "tried again", "nothing"),
    ("a loss becomes NaN", "kept", "diverged", "nothing"),
    ("an error in your code", "kept", "failed", "mend it"),
)
FATES = {"kept": "green", "go on": "blue", "tried again": "amber", "waits": "amber"}


def survives() -> Picture:
    """What survives what: whatever dies, finished trials are kept, running ones go on from their checkpoints, and often
    nothing has to be done."""
    p = Picture(30 * len(DEATHS) + 58, "What survives what")
    columns = ((162, 96, "finished trials"), (264, 96, "running trials"), (366, 112, "you do"))
    for at, _, words in columns:
        p.text(at, 42, words, "note")
    for i, (cause, *fates) in enumerate(DEATHS):
        y = 52 + 30 * i
        p.text(0, y + 18, cause)
        for (at, wide, _), fate in zip(columns, fates, strict=True):
            colour = FATES.get(fate, "axis" if fate == "nothing" else "pink")
            p.box(at, y, wide, 26, colour, 0.2, colour, 4)
            p.text(at + wide / 2, y + 17, fate, anchor="middle")
    return p


def program() -> Picture:
    """How a program is a trial: fedtune starts it with a trial's values, reads a line of figures for every round, and
    ends it early if others are better; the program itself is not edited."""
    p = Picture(306, "Your program is a trial")
    block(p, 2, 36, 140, 62, "own.toml", "command, metrics,", "ranges", colour="green")
    block(p, 186, 36, 120, 62, "fedtune", "searcher", "and ASHA", colour="blue")
    block(p, 350, 36, 128, 62, "report", "best, default,", "fresh seeds", colour="pink")
    p.arrow((142, 67), (186, 67))
    p.arrow((306, 67), (350, 67))
    p.box(2, 196, 476, 106, "axis", 0.08, "axis", 6)
    p.text(12, 215, "your program, one process a trial", bold=True)
    p.text(12, 237, "round 1: validation accuracy 0.4127", code=True)
    p.text(12, 255, "round 2: validation accuracy 0.6804", code=True)
    p.text(12, 273, "round 3: validation accuracy 0.7019", code=True)
    p.text(12, 293, "…", code=True)
    p.arrow((210, 98), (210, 196), "blue")
    p.text(200, 130, "starts it with values:", "note", "end")
    p.text(200, 148, "--lr 0.03 --layers 2", anchor="end", code=True)
    p.arrow((282, 226), (282, 98), "green")
    p.text(294, 130, "reads every round;", "note")
    p.text(294, 148, "stops it if others", "note")
    p.text(294, 166, "are better", "note")
    return p


def verdicts() -> Picture:
    """The three verdicts of a comparison: an interval beyond the margin is larger, one inside is within it, and
    one that crosses an end cannot be told."""
    margin = 100 * ComparisonOptions.margin
    p = Picture(
        238,
        "Three verdicts against a margin",
        f"a difference of two algorithms with its 95 % interval; margin: {margin:g} points",
    )
    x = Axis(-1.6, 2.4, 150, 470)
    p.box(x(-margin), 46, x(margin) - x(-margin), 140, "green", 0.15)
    p.text(x(-margin) + 5, 60, "margin", "note")
    across(p, x, (-1, 0, 1, 2), 46, 186, "points of accuracy")
    rows = (
        (1.4, 0.6, "larger", "blue"), (0.1, 0.25, "within the margin", "green"), (0.7, 0.7, "cannot be told", "amber"),
        (-0.2, 1.1, "cannot be told", "amber"),
    )  # fmt: skip
    for i, (mean, half, words, colour) in enumerate(rows):
        y = 80 + 28 * i
        p.text(0, y + 4, words, bold=True)
        interval(p, x, y, mean, half, colour)
    return p


SHOWN = ("lr", "momentum", "local_epochs", "tune_lr", "tune_epochs", "batch", "lr_decay", "weight_decay", "clip_norm")


def spaces() -> Picture:
    """The ranges over which every algorithm searches what all share: the default space lies within the wide one, and
    that within what can be searched at all."""
    declared: dict[str, Hyperparameter] = hyperparameters(Scenario) | hyperparameters(registry.find("fedavgft"))
    p = Picture(32 * len(SHOWN) + 68, "What all algorithms share has one range for all")
    p.legend(38, [("blue", "default space"), ("amber", "wide"), ("grid", "can be searched")])
    for i, name in enumerate(SHOWN):
        hp, y = declared[name], 62 + 32 * i
        assert hp.low is not None and hp.high is not None
        x = Axis(hp.low, hp.high, 150, 416, hp.log)
        p.text(0, y + 4, name, code=True)
        p.line([(x.start, y), (x.end, y)], "grid", 12)
        for ranges, colour, thick in ((shared.WIDE, "amber", 12), (shared.DEFAULT, "blue", 12)):
            if name in ranges:
                low, high = (declared[name].low if end is None else end for end in ranges[name])
                p.line([(x(low), y), (x(high), y)], colour, thick)
        p.text(144, y + 4, f"{hp.low:g}", "note", "end")
        p.text(422, y + 4, f"{hp.high:g}" + (" log" if hp.log else ""), "note")
        if name in shared.DEFAULT:
            low, high = shared.DEFAULT[name]
            p.text((x(low) + x(high)) / 2, y + 18, f"{low:g}..{high:g}", "note", "middle", size=11)
    return p


DIAGRAMS: Sequence[Any] = (round_, stack, cluster, survives, program, verdicts, spaces)
