"""The figure of what became of a search's trials at its rungs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedtune.analysis.plot_tools import UNITS, form, in_words, run_of, ticks, with_cost
from fedtune.analysis.theme import COLOURS, GREY, finish, nothing
from fedtune.core.terminal import several
from fedtune.runs.trial_states import UNTRAINED

FATES = {
    "went on": COLOURS[0],
    "finished": COLOURS[2],
    "stopped": COLOURS[4],
    "diverged": COLOURS[1],
    "failed": COLOURS[6],
    UNTRAINED: COLOURS[3],
    "still open": GREY,
}


def rung_survival(
    trials: pd.DataFrame, rounds: pd.DataFrame, rungs: Sequence[float], unit: str = "rounds", metric: str = "val_acc"
) -> go.Figure:
    """How many trials reached each rung and what became of them, and below it their accuracies there.

    rungs: as in run.json, in the unit of the search's budget: rounds, mb, seconds or sim_seconds.

    >>> from fedtune.analysis import frames, plots
    >>> trials, rounds = frames.load("runs/NAME")
    >>> figure = plots.rung_survival(trials, rounds, frames.record("runs/NAME")["rungs"])
    >>> figure.write_html("rung_survival.html")
    """
    title = "What became of the trials at each rung"
    scored = with_cost(rounds, unit, metric)
    if trials.empty or scored.empty:
        return nothing(title, "no trial has reported a round")
    if not len(rungs):
        return nothing(title, "this search had no rungs: every trial was trained to its end")
    used = scored.assign(_used=scored.groupby(run_of(scored))["_cost"].cumsum())
    end = used.groupby("trial")["_used"].max()
    status = trials.set_index("trial")["status"].astype(str)
    at_stage = {"begun": end.reindex(status.index).fillna(0) >= 0}
    at_stage |= {
        f"{rung:g} {UNITS[unit][1]}{'s' * (unit == 'rounds' and rung != 1)}": end.reindex(status.index) >= rung
        for rung in rungs
    }
    at_stage["the end"] = status == "finished"
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.55, 0.45])
    fate, stages = {}, list(at_stage)
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        statuses = status[at_stage[stage]]
        on = at_stage[after][statuses.index] if after else pd.Series(False, index=statuses.index)
        how_ended = statuses.where(statuses.isin(FATES), "still open")
        fate[stage] = how_ended.mask(on, "went on")
    for how, colour in FATES.items():
        counts = [int((fate[s] == how).sum()) for s in stages]
        if any(counts):
            figure.add_bar(
                x=stages,
                y=counts,
                name=how,
                marker_color=colour,
                text=[c or "" for c in counts],
                row=1,
                col=1,
                legendgroup=how,
            )
    first = {stage: used[used["_used"] >= rung] for stage, rung in zip(stages[1:-1], rungs, strict=True)}
    _add_values(figure, first, fate, metric)
    what = "accuracy" if metric == "val_acc" else in_words(metric)
    figure.update_layout(barmode="stack", boxmode="group")
    # room above the highest bar, where the number of a part that is too low for it stands
    figure.update_yaxes(title="trials", range=[0, 1.18 * len(trials)], row=1, col=1)
    there = "val. accuracy there" if metric == "val_acc" else what
    figure.update_yaxes(title=there, tickformat=ticks(metric), row=2, col=1)
    figure.update_xaxes(categoryorder="array", categoryarray=stages)
    figure.update_xaxes(title=f"stage ({UNITS[unit][0].split(' [')[0]})", row=2, col=1)
    note = f"n = {several(len(trials), 'trial')}; below, each trial's {what} when it came to the rung"
    return finish(figure, title, note, height=480, legend=1)


def _add_values(figure: go.Figure, reached: dict[str, pd.DataFrame], fate: dict[str, pd.Series], metric: str) -> None:
    """Below, a point for each trial at each rung, in the colour of its fate.  reached: the rounds from a rung on."""
    for how, colour in FATES.items():
        here = {s: rounds[rounds["trial"].isin(fate[s][fate[s] == how].index)] for s, rounds in reached.items()}
        first = {s: rounds.groupby("trial", as_index=False).first() for s, rounds in here.items()}
        points = pd.concat([rounds[["trial", metric]].assign(stage=s) for s, rounds in first.items()])
        if len(points):
            figure.add_box(  # only for its points, which lie beside one another where they are equal
                x=points["stage"],
                y=points[metric],
                name=how,
                legendgroup=how,
                showlegend=False,
                boxpoints="all",
                jitter=0.7,
                pointpos=0,
                fillcolor="rgba(0,0,0,0)",
                line={"width": 0},
                marker={"color": colour, "size": 8, "opacity": 0.7},
                text=points["trial"],
                hoveron="points",
                hovertemplate=f"%{{text}}: %{{y:{form(metric)}}}<extra></extra>",
                row=2,
                col=1,
            )
