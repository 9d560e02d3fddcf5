"""A search as an Optuna study: which of its trials can be compared, and which hyperparameters mattered.

Optuna and scikit-learn, which grows the forests, are imported where they are needed, and no library of figures is.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedtune.core.metrics import METRIC, in_words
from fedtune.core.objectives import WORST
from fedtune.core.terminal import several
from fedtune.runs.folder import StudyFolder

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LEAST = {"parallel": 2, "slices": 2, "importance": 8}  # trials below which a figure misleads
FEW, MOST = 1 / 3, 3 / 4  # the least share of the trials that a figure shows; that importance is computed from
GROWN = 250  # trials on which a forest is grown, for its time grows with their square; of more some are drawn at random
RESAMPLES = 20  # of the trials, which say how sure the most important hyperparameter is


class Importance(NamedTuple):
    """Shares of the variance between trials that hyperparameters explain, and how robust they are to resampling.

    shares   of the objective's variance, by fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014), the largest first
    first    in how many of RESAMPLES bootstrap samples of the trials the same hyperparameter comes first
    trials   how many they are
    ranges   of each share, where 90 % of the resamples lie; wide enough for the share itself, which few trials may put
             outside: a resample has fewer different trials
    note     which trials they are
    """

    shares: dict[str, float]
    first: int
    trials: int
    ranges: dict[str, tuple[float, float]] = {}
    note: str = ""


def study(run: str | Path) -> optuna.Study | None:
    """A run's Optuna study; None if it has none (a search that is not over, population based training).

    >>> from fedtune.analysis import plots
    >>> len(plots.study("runs/NAME").trials)
    24
    """
    return StudyFolder(run).study


def pooled(studies: Sequence[optuna.Study]) -> optuna.Study:
    """One study of the trials of several searches of the same space, such as an algorithm's in a comparison.

    >>> from fedtune.analysis import plots
    >>> searches = [plots.study("runs/NAME"), plots.study("runs/NAME")]  # yours: the folders of two searches
    >>> plots.mattered(plots.pooled(searches)).trials
    44
    """
    trials = [trial for study in studies for trial in study.get_trials(deepcopy=False)]
    return study_of(trials, studies[0].directions)


def mattered(study: optuna.Study | None) -> Importance | None:
    """Which hyperparameters mattered, and how sure that is; None if the trials do not show it.

    >>> from fedtune.analysis import plots
    >>> found = plots.mattered(plots.study("runs/NAME"))
    >>> next(iter(found.shares)), found.first, found.trials
    ('retrain_epochs', 13, 22)
    """
    if study is None or lacks(study, "importance") or not (shares := shares_of(study)):
        return None
    trials, order = grown_on(study).get_trials(deepcopy=False), np.random.default_rng(0)
    first, drawn = 0, []
    for _ in range(RESAMPLES):
        resample = study_of([trials[i] for i in order.integers(len(trials), size=len(trials))], study.directions[:1])
        drawn.append(_importances(resample, trees=16))
        first += next(iter(drawn[-1]), "") == next(iter(shares))
    quantiles = {name: np.quantile([share.get(name, 0.0) for share in drawn], (0.05, 0.95)) for name in shares}
    ranges = {name: (min(float(a), shares[name]), max(float(b), shares[name])) for name, (a, b) in quantiles.items()}
    return Importance(shares, first, len(trials), ranges, note(study))


def note(study: optuna.Study) -> str:
    """The trials that importances are computed from, in words."""
    from optuna.trial import TrialState

    trials, text = comparable(study, MOST)
    if len(trials) > GROWN:
        text += f"; {GROWN} of these, drawn at random"
    if not all(t.state == TrialState.COMPLETE for t, _ in trials):
        text += "; optuna-dashboard counts the finished trials alone"
    return text


def shares_of(study: optuna.Study) -> dict[str, float]:
    """Importances of a study's hyperparameters; empty if they cannot be computed."""
    return _importances(grown_on(study))


def metric_of(study: optuna.Study | None) -> str:
    """The metric by which the study's trials are judged."""
    return study.metric_names[0] if study and study.metric_names else METRIC


def judged_by(study: optuna.Study | None) -> str:
    """That metric in words."""
    return "accuracy" if metric_of(study) == METRIC else in_words(metric_of(study))


def comparable(study: optuna.Study, share: float = FEW) -> tuple[list[tuple[FrozenTrial, float]], str]:
    """Trials with a value of the objective after equally long training, and a description of them.

    These are the finished trials.  If there are fewer than eight, or fewer than this share of all, they are all trials
    that reached the last round that enough trials reached: stopped trials are informative too, above all about which
    hyperparameters matter, as only good values of those continue.  (With two objectives Optuna keeps no rounds.)
    Diverged trials are never included: Optuna has them as complete with the worst value, which would hide all else.
    """
    from optuna.trial import TrialState

    sound = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    sound = [t for t in sound if t.params and not t.user_attrs.get("diverged")]
    finished = [(t, t.values[0]) for t in sound if t.state == TrialState.COMPLETE]
    fewest = max(LEAST["importance"], len(sound) * share)
    scored = {t.number: {step: v for step, v in t.intermediate_values.items() if abs(v) < WORST} for t in sound}
    counts = Counter(step for values in scored.values() for step in values)
    rounds = [step for step, trials in counts.items() if trials >= fewest]
    every = len(study.get_trials(deepcopy=False))
    if len(finished) >= fewest or not rounds:
        out = "; those stopped early, failed or diverged are left out" if every > len(finished) else ""
        return finished, f"n = {len(finished)} finished trials of {every}{out}"
    last = max(rounds)
    at_last = [(t, scored[t.number][last]) for t in sound if last in scored[t.number]]
    by = f"by {judged_by(study)} after round {last}: only {len(finished)} finished"
    return at_last, f"n = {several(len(at_last), 'trial')} of {every}, {by}"


def comparable_study(study: optuna.Study) -> optuna.Study:
    """A study of those alone, with that value as its only objective."""
    return study_of(_valued(comparable(study)[0]), study.directions[:1])


def grown_on(study: optuna.Study) -> optuna.Study:
    """A random sample of the trials if they are many, so that none is chosen by its result."""
    trials = comparable(study, MOST)[0]
    if len(trials) > GROWN:
        trials = [trials[i] for i in sorted(np.random.default_rng(0).choice(len(trials), GROWN, replace=False))]
    return study_of(_valued(trials), study.directions[:1])


def _valued(scored: Sequence[tuple[FrozenTrial, float]]) -> list[FrozenTrial]:
    """Trials with these values as their results.

    Each hyperparameter has one range in all of them, also where a search went on over wider ones: Optuna leaves out
    of its importances whatever has two.
    """
    import optuna

    ranges: dict[str, list[BaseDistribution]] = {}
    for trial, _ in scored:
        for name, distribution in trial.distributions.items():
            ranges.setdefault(name, []).append(distribution)
    common = {name: _common(distributions) for name, distributions in ranges.items()}
    return [
        optuna.create_trial(params=t.params, distributions={n: common[n] for n in t.params}, value=value)
        for t, value in scored
    ]


def _common(distributions: Sequence[BaseDistribution]) -> BaseDistribution:
    """The range, or the choices, that contain all of these."""
    from optuna.distributions import CategoricalDistribution

    every: list[Any] = list(distributions)
    one = every[0]
    if isinstance(one, CategoricalDistribution):
        return CategoricalDistribution(tuple(dict.fromkeys(c for d in every for c in d.choices)))
    ends = {"low": min(d.low for d in every), "high": max(d.high for d in every)}
    common: BaseDistribution = type(one)(**one._asdict() | ends)
    return common


def study_of(
    trials: Sequence[FrozenTrial], directions: Sequence[optuna.study.StudyDirection], names: Sequence[str] | None = None
) -> optuna.Study:
    """A study of these trials, whose objectives point in these directions and have these names."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=directions)
    if names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(names))
    study.add_trials(trials)
    optuna.logging.set_verbosity(verbosity)
    return study


def varied(study: optuna.Study) -> list[str]:
    """Hyperparameters of which these trials have several values."""
    values: dict[str, set[Any]] = {}
    for trial, _ in comparable(study)[0]:
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(value)
    return [name for name, seen in values.items() if len(seen) > 1]


def _importances(study: optuna.Study, trees: int = 64) -> dict[str, float]:
    """Importances by fANOVA over a study's trials; empty if it fails.  trees: of the forest."""
    import optuna
    from optuna.importance import FanovaImportanceEvaluator

    if len({t.values[0] for t in study.get_trials(deepcopy=False)}) < 2:
        return {}
    try:
        shares = optuna.importance.get_param_importances(
            study, evaluator=FanovaImportanceEvaluator(n_trees=trees, seed=0)
        )
    except (ValueError, RuntimeError):  # no hyperparameter that all trials have
        return {}
    finally:
        _forget_trees()
    return {name: float(share) for name, share in shares.items()}


def _forget_trees() -> None:
    """Empty the caches of the methods of Optuna's trees, which keep every tree ever grown: 10 MB a forest."""
    tree = getattr(sys.modules.get("optuna.importance._fanova._tree"), "_FanovaTree", None)
    for method in vars(tree).values() if tree else ():
        if hasattr(method, "cache_clear"):
            method.cache_clear()


def lacks(study: optuna.Study | None, figure: str) -> str:
    """Why there is no such figure; empty if there is."""
    if study is None:
        return "the run has no study.journal: its search did not use Optuna"
    count, fewest = len(comparable(study)[0]), LEAST[figure]
    return f"this needs at least {fewest} finished trials, but there are {count}" if count < fewest else ""


def described(study: optuna.Study) -> str:
    """The trials that can be compared, in words."""
    return comparable(study)[1]
