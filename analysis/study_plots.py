"""Figures of a search as an Optuna study: Optuna's own, in this project's style, of comparable trials.

Optuna and scikit-learn, which grows the forests, are imported where a study is drawn: other figures need neither.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from analysis.plot_tools import in_words
from analysis.theme import COLOURS, SCALE, finish, nothing
from fedtune.core.metrics import METRIC
from fedtune.core.objectives import FAR
from fedtune.core.terminal import several
from fedtune.runs.folder import RunFolder

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.importance import BaseImportanceEvaluator
    from optuna.trial import FrozenTrial

LEAST = {"parallel": 2, "slices": 2, "contour": 4, "importance": 8}  # trials below which a figure misleads
FEW, MOST = 1 / 3, 3 / 4  # shares of the trials that a figure takes at least: most do, and those of importance
GROWN = 250  # trials on which a forest is grown, for its time grows with their square; of more some are drawn at random
RESAMPLES = 20  # of the trials, which say how sure the most important hyperparameter is


class Importance(NamedTuple):
    """Shares of the variance between trials that hyperparameters explain, and how robust they are to resampling.

    shares   of the objective's variance, by fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014), the largest first
    first    in how many of RESAMPLES bootstrap samples of the trials the same hyperparameter comes first
    trials   how many they are
    ranges   of each share, where 90 % of the resamples lie; wide enough for the share itself, which few trials may put
             outside: a resample has fewer different trials
    """

    shares: dict[str, float]
    first: int
    trials: int
    ranges: dict[str, tuple[float, float]] = {}


def study(run: str | Path) -> optuna.Study | None:
    """A run's Optuna study; None if it has none (a search that is not over, population based training).

    >>> from analysis import plots
    >>> len(plots.study("runs/NAME").trials)
    24
    """
    return RunFolder(run).study


def pooled(studies: Sequence[optuna.Study]) -> optuna.Study:
    """One study of the trials of several searches of the same space, such as an algorithm's in a comparison.

    >>> from analysis import plots
    >>> searches = [plots.study("runs/NAME"), plots.study("runs/NAME")]  # yours: the folders of two searches
    >>> plots.mattered(plots.pooled(searches)).trials
    44
    """
    trials = [trial for study in studies for trial in study.get_trials(deepcopy=False)]
    return _study_of(trials, studies[0].directions)


def parallel(study: optuna.Study | None) -> go.Figure:
    """Parallel coordinates: a line per trial through its hyperparameters, coloured by the objective.

    >>> from analysis import plots
    >>> figure = plots.parallel(plots.study("runs/NAME"))
    >>> figure.write_html("parallel.html")
    """
    what = _objective(study)
    title = f"Every trial's hyperparameters and {what}"
    if why := _lacks(study, "parallel"):
        return nothing(title, why)
    import optuna.visualization as charts

    assert study is not None
    figure = _ours(charts.plot_parallel_coordinate(_alike(study), target_name=_axis(what)))
    lines = list(figure.select_traces({"mode": "lines"}))
    low, high = (0, 1) if what == "accuracy" else (min(li.y[0] for li in lines), max(li.y[0] for li in lines) + 1e-12)
    for line in lines:  # Optuna's palest are hardly seen; y[0]: the objective
        line.line.color = sample_colorscale(SCALE, 1 - (line.y[0] - low) / (high - low))[0]
    several_values = len({value for _, value in _comparable(study)[0]}) > 1
    look = {"colorscale": SCALE, "reversescale": True, "showscale": several_values}  # of one, it is made up
    figure.update_traces(marker=look, selector={"mode": "markers"})
    alike = "" if several_values else f"; all have the same {what}"
    return finish(figure, title, f"{_n(study)}; from the left: {what}, then the hyperparameters{alike}")


def slices(study: optuna.Study | None) -> go.Figure:
    """The objective against each hyperparameter by itself, a point per trial.

    >>> from analysis import plots
    >>> figure = plots.slices(plots.study("runs/NAME"))
    >>> figure.write_html("slices.html")
    """
    what = _objective(study)
    title = f"{what[:1].upper()}{what[1:]} against each hyperparameter"
    if why := _lacks(study, "slices"):
        return nothing(title, why)
    import optuna.visualization as charts

    assert study is not None
    flat = _ours(charts.plot_slice(_alike(study)))  # all in one row, which is too narrow for more than three
    rows = math.ceil(len(flat.data) / 2)
    figure = make_subplots(rows=rows, cols=2, shared_yaxes=True, horizontal_spacing=0.05, vertical_spacing=0.32 / rows)
    for i, trace in enumerate(flat.data):
        axis = flat.layout["xaxis" + (str(i + 1) if i else "")]
        figure.add_trace(trace, row=i // 2 + 1, col=i % 2 + 1)
        decades = math.log10(max(trace.x) / min(trace.x)) if axis.type == "log" else 0
        figure.update_xaxes(
            title=axis.title.text,
            type=axis.type,
            row=i // 2 + 1,
            col=i % 2 + 1,
            dtick=None if axis.type != "log" else 1 if decades > 1.2 else "D2",
        )
    figure.update_traces(marker={"color": COLOURS[0], "opacity": 0.7, "size": 7, "showscale": False})
    figure.update_yaxes(title=_axis(what), col=1)
    return finish(figure, title, _n(study), height=60 + 230 * rows)


def contour(study: optuna.Study | None, names: Sequence[str] | None = None) -> go.Figure:
    """The objective over a pair of hyperparameters (default: the two most important), interpolated between trials.

    >>> from analysis import plots
    >>> figure = plots.contour(plots.study("runs/NAME"), ["lam", "lr"])
    >>> figure.write_html("contour.html")
    """
    what = _objective(study)
    title = f"{what[:1].upper()}{what[1:]} over a pair of hyperparameters"
    if why := _lacks(study, "contour"):
        return nothing(title, why)
    import optuna.visualization as charts

    assert study is not None
    ranked = list(_shares(study)) or list(_varied(study))
    chosen = list(names or ranked[:2])
    if len(chosen) < 2 or not set(chosen) <= set(_varied(study)):
        return nothing(title, f"a pair needs two hyperparameters that vary, but there is {', '.join(ranked) or 'none'}")
    figure = _ours(charts.plot_contour(_alike(study), params=chosen, target_name=_axis(what)))
    figure.update_traces(colorscale=SCALE, reversescale=False, selector={"type": "contour"})
    figure.update_traces(
        marker={"color": COLOURS[1], "line": {"color": "white", "width": 1}, "size": 7}, selector={"type": "scatter"}
    )
    note = f"{_n(study)} (points); what lies between points is interpolated"
    return finish(figure, f"{what[:1].upper()}{what[1:]} over {' and '.join(chosen)}", note, height=440)


def importance(study: optuna.Study | None) -> go.Figure:
    """What share of the objective's variance each hyperparameter explains by itself: fANOVA, by Optuna's evaluator.

    >>> from analysis import plots
    >>> figure = plots.importance(plots.study("runs/NAME"))
    >>> figure.write_html("importance.html")
    """
    what = _objective(study)
    title = f"Share of {what}'s variance by hyperparameter (fANOVA)"
    if why := _lacks(study, "importance"):
        return nothing(title, why)
    import optuna.visualization as charts
    from optuna.trial import TrialState

    assert study is not None
    if not (shares := _shares(study)):
        return nothing(title, f"all trials have the same {what} or the same hyperparameters")
    grown = _grown(study)
    figure = _ours(charts.plot_param_importances(grown, evaluator=_known(shares), target_name=_axis(what)))
    figure.update_traces(marker_color=COLOURS[0]).update_yaxes(title="")
    figure.update_xaxes(title="share of variance", range=[0, 1.2 * max(shares.values())])  # room for the figure
    left_out = len(grown.trials) < len(_comparable(study, MOST)[0])
    note = _n(study, MOST) + (f"; {len(grown.trials)} of these, drawn at random" if left_out else "")
    if not all(t.state == TrialState.COMPLETE for t, _ in _comparable(study, MOST)[0]):
        note += "; optuna-dashboard counts the finished trials alone"
    return finish(figure, title, note, height=110 + 34 * len(_varied(study)))


def mattered(study: optuna.Study | None) -> Importance | None:
    """Which hyperparameters mattered, and how sure that is; None if the trials do not show it.

    >>> from analysis import plots
    >>> found = plots.mattered(plots.study("runs/NAME"))
    >>> next(iter(found.shares)), found.first, found.trials
    ('retrain_epochs', 13, 22)
    """
    if study is None or _lacks(study, "importance") or not (shares := _shares(study)):
        return None
    trials, order = _grown(study).get_trials(deepcopy=False), np.random.default_rng(0)
    first, drawn = 0, []
    for _ in range(RESAMPLES):
        some = _study_of([trials[i] for i in order.integers(len(trials), size=len(trials))], study.directions[:1])
        drawn.append(_importances(some, trees=16))
        first += next(iter(drawn[-1]), "") == next(iter(shares))
    found = {name: np.quantile([share.get(name, 0.0) for share in drawn], (0.05, 0.95)) for name in shares}
    ranges = {name: (min(float(a), shares[name]), max(float(b), shares[name])) for name, (a, b) in found.items()}
    return Importance(shares, first, len(trials), ranges)


def _ours(figure: go.Figure) -> go.Figure:
    """Optuna's figure, whose texts have lines as ours do."""
    for trace in figure.data:
        for name in ("text", "hovertext"):
            if trace[name] is not None and not isinstance(trace[name], str):
                trace[name] = [str(text).replace("<br>", "\n") for text in trace[name]]
    return figure


def _objective(study: optuna.Study | None) -> str:
    """The value by which the study's trials are judged, in words."""
    name = study.metric_names[0] if study and study.metric_names else METRIC
    return "accuracy" if name == METRIC else in_words(name)


def _axis(what: str) -> str:
    return "val. accuracy" if what == "accuracy" else what


def _comparable(study: optuna.Study, share: float = FEW) -> tuple[list[tuple[FrozenTrial, float]], str]:
    """Trials with a value of the objective after equally long training, and a description of them.

    These are the finished trials.  If there are fewer than eight, or fewer than this share of all, they are all trials
    that reached the last round that enough trials reached: stopped trials are informative too, above all about which
    hyperparameters matter, as only good values of those continue.  (With two objectives Optuna keeps no rounds.)
    Diverged trials are never included: Optuna has them as complete with the worst value, which would hide all else.
    """
    from optuna.trial import TrialState

    known = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    known = [t for t in known if t.params and not t.user_attrs.get("diverged")]
    finished = [(t, t.values[0]) for t in known if t.state == TrialState.COMPLETE]
    least = max(LEAST["importance"], len(known) * share)
    scored = {t.number: {step: v for step, v in t.intermediate_values.items() if abs(v) < FAR} for t in known}
    reached = Counter(step for values in scored.values() for step in values)
    rounds = [step for step, trials in reached.items() if trials >= least]
    every = len(study.get_trials(deepcopy=False))
    if len(finished) >= least or not rounds:
        out = "; those stopped early, failed or diverged are left out" if every > len(finished) else ""
        return finished, f"n = {len(finished)} finished trials of {every}{out}"
    last = max(rounds)
    there = [(t, scored[t.number][last]) for t in known if last in scored[t.number]]
    by = f"by {_objective(study)} after round {last}: only {len(finished)} finished"
    return there, f"n = {several(len(there), 'trial')} of {every}, {by}"


def _alike(study: optuna.Study, share: float = FEW) -> optuna.Study:
    """A study of those alone, with that value as its only objective."""
    return _study_of(_valued(_comparable(study, share)[0]), study.directions[:1])


def _grown(study: optuna.Study) -> optuna.Study:
    """A random sample of the trials if they are many, so that none is chosen by its result."""
    trials = _comparable(study, MOST)[0]
    if len(trials) > GROWN:
        trials = [trials[i] for i in sorted(np.random.default_rng(0).choice(len(trials), GROWN, replace=False))]
    return _study_of(_valued(trials), study.directions[:1])


def _valued(found: Sequence[tuple[FrozenTrial, float]]) -> list[FrozenTrial]:
    """Trials with these values as their results.

    Each hyperparameter has one range in all of them, also where a search went on over wider ones: Optuna leaves out
    of its importances whatever has two.
    """
    import optuna

    ranges: dict[str, list[BaseDistribution]] = {}
    for trial, _ in found:
        for name, distribution in trial.distributions.items():
            ranges.setdefault(name, []).append(distribution)
    common = {name: _common(distributions) for name, distributions in ranges.items()}
    return [
        optuna.create_trial(params=t.params, distributions={n: common[n] for n in t.params}, value=value)
        for t, value in found
    ]


def _common(distributions: Sequence[BaseDistribution]) -> BaseDistribution:
    """The range, or the choices, that contain all of these."""
    from optuna.distributions import CategoricalDistribution

    every: list[Any] = list(distributions)
    one = every[0]
    if isinstance(one, CategoricalDistribution):
        return CategoricalDistribution(tuple(dict.fromkeys(c for d in every for c in d.choices)))
    ends = {"low": min(d.low for d in every), "high": max(d.high for d in every)}
    found: BaseDistribution = type(one)(**one._asdict() | ends)
    return found


def _study_of(trials: Sequence[FrozenTrial], directions: Sequence[optuna.study.StudyDirection]) -> optuna.Study:
    """A study of these trials, whose objectives point in these directions."""
    import optuna

    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(directions=directions)
    made.add_trials(trials)
    optuna.logging.set_verbosity(said)
    return made


def _varied(study: optuna.Study) -> list[str]:
    """Hyperparameters of which these trials have several values."""
    values: dict[str, set[Any]] = {}
    for trial, _ in _comparable(study)[0]:
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _known(shares: dict[str, float]) -> BaseImportanceEvaluator:
    """What gives importances that are computed already: a forest takes seconds, and a report shows its shares twice."""
    from optuna.importance import BaseImportanceEvaluator

    class Known(BaseImportanceEvaluator):
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return shares

    return Known()


def _shares(study: optuna.Study) -> dict[str, float]:
    """Importances of a study's hyperparameters, computed again when more of its trials can be compared."""
    return _shares_of(study, len(_comparable(study, MOST)[0]))


@lru_cache(maxsize=1)
def _shares_of(study: optuna.Study, _trials: int) -> dict[str, float]:
    return _importances(_grown(study))


def _importances(study: optuna.Study, trees: int = 64) -> dict[str, float]:
    """By fANOVA over a study's trials; empty if it cannot be computed.  trees: of its forest."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator

    if len({t.values[0] for t in study.get_trials(deepcopy=False)}) < 2:
        return {}
    try:
        found = optuna.importance.get_param_importances(
            study, evaluator=FanovaImportanceEvaluator(n_trees=trees, seed=0)
        )
    except (ValueError, RuntimeError):  # no hyperparameter that all trials have
        return {}
    return {name: float(share) for name, share in found.items()}


def _lacks(study: optuna.Study | None, figure: str) -> str:
    """Why there is no such figure; empty if there is."""
    if study is None:
        return "the run has no study.journal: its search did not use Optuna"
    found, least = len(_comparable(study)[0]), LEAST[figure]
    return f"this needs at least {least} finished trials, but there are {found}" if found < least else ""


def _n(study: optuna.Study, share: float = FEW) -> str:
    return _comparable(study, share)[1]
