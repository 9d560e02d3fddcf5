"""fedtune from Python: searches and their folders, one configuration, and the pieces for your own search.

Arguments have the names of the command line's options (trials, scheduler, seeds_per_trial, …), of a scenario's fields
(rounds, clients, lr, …) or of the algorithm's hyperparameters, which are then held fixed.  An invalid argument raises
a `UserError` of one line that names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtune.core import objectives
from fedtune.core.errors import Diverged, UserError
from fedtune.core.metrics import METRIC
from fedtune.core.workload import Workload
from fedtune.runs.folder import StudyFolder
from fedtune.training import Algo, options_of
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.tuning.options.search import SearchOptions

if TYPE_CHECKING:
    import optuna
    from ray import tune

    from fedtune.tuning.space import Space


class Search:
    """A search for an algorithm's hyperparameters, as the command `fedtune search` makes it.

    Search("gfpl", "digits-shards", trials=16, scheduler="asha", rounds=20).run()

    >>> import fedtune
    >>> search = fedtune.Search("gfpl", "digits-shards", trials=16, rounds=20)
    >>> search
    Search(algo='gfpl', scenario='digits-shards', fields={'rounds': 20}, trials=16)
    >>> run = search.run()  # doctest: +SKIP
    """

    def __init__(self, algo: Algo, scenario: str = "", **options: Any) -> None:
        """Check the arguments; UserError if one is invalid.  Nothing is started or written.

        algo      a name, FILE.py, FILE.py:NAME, an Algorithm's class, or a program's FILE.toml.  For a class from a
                  module the study's folder keeps the module's file; a class from a notebook or from the script itself
                  is kept as a pickle
        options   a search's options, the scenario's fields, and hyperparameters of the algorithm to hold fixed.
                  set={"lr": 0.1} fixes a hyperparameter of the scenario; lr=0.1 would only change its default
        """
        self.options = options_of(SearchOptions, algo, scenario, options)
        self.options.workload()

    def run(self) -> Study:
        """Search, check the result on fresh seeds, and return the study's folder.

        Progress is shown as on the command line.  An interrupted search keeps its results; `state` says how it ended.
        """
        from fedtune.studies import search_study
        from fedtune.tuning import plan

        planned = plan.make(self.options)
        search_study.run_with_ray(planned)
        return Study(planned.folder)

    def __repr__(self) -> str:
        """The call: the scenario, and every argument that is not a default."""
        given = [(f, getattr(self.options, f.name)) for f in dataclasses.fields(self.options)]
        changed = [f"{f.name}={value!r}" for f, value in given if value not in (f.default, {})]
        return f"Search({', '.join(changed)})"


class Study(StudyFolder):
    """The folder of a search: its record, tables, best configuration and report.

    >>> import fedtune
    >>> run = fedtune.Study("runs/NAME")
    >>> run.state, len(run.trials)
    ('finished', 24)
    >>> round(run.best["hyperparameters"]["lr"], 3)
    0.042
    """

    def __init__(self, path: str | Path) -> None:
        """UserError if the folder holds no search."""
        super().__init__(path)
        if not self.record_file.is_file():
            raise self.damaged("there is none")

    def report(self, file: str | Path | None = None) -> Path:
        """Write the report, by default RUN/report.html.  It replaces an earlier report, but never another file.

        >>> import fedtune
        >>> fedtune.Study("runs/NAME").report("page.html")  # doctest: +SKIP
        PosixPath('page.html')
        """
        from fedtune.reporting import output, page

        out = output.place([self.path], Path(file) if file else None)
        page.write([self.path], out)
        return out

    def __repr__(self) -> str:
        """The folder and the search's state."""
        return f"Study({str(self.path)!r}): {self.state}"


def tunable(
    algo: Algo, scenario: str = "", space: str = "default", seeds_per_trial: int = 1, **options: Any
) -> tuple[Any, dict[str, tune.search.sample.Domain]]:
    """A trainable class and a search space for your own `ray.tune.Tuner`, with any scheduler and any searcher.

    space     a space's name, or FILE.py:NAME; it must consist of ranges
    seeds_per_trial   a trial reports the means over so many seeds; take it in place of Tune's `Repeater`
    options   as for `train`

    Every round is an iteration that reports `val_acc` and every other metric.  Schedulers may stop trials or perturb
    them; state can be saved and restored.  The data are put into Ray's object store once.  A conditional hyperparameter
    is always in the space; where its condition does not hold, it has no effect.

    >>> import fedtune
    >>> trainable, space = fedtune.tunable("fedproto", "digits-w4", rounds=2, clients=4)
    >>> sorted(space)
    ['lam', 'local_epochs', 'lr', 'momentum']
    >>> from ray import tune
    >>> tuner = tune.Tuner(trainable, param_space=space)  # doctest: +SKIP
    """
    from ray import tune

    from fedtune.cluster import ray_internals
    from fedtune.core.budget import Budget
    from fedtune.core.process import turn
    from fedtune.tuning.space import inside
    from fedtune.tuning.trainable import FederatedTrainable

    with turn():
        given, workload, domains = _ranges(algo, scenario, space, options)
        data = _prepared(given, workload, SearchOptions(seeds_per_trial=seeds_per_trial).seeds_per_trial)
        workload = workload.trainer.settled(workload, inside(domains, workload.default())[0], data[0])
    budget = Budget("rounds", workload.rounds)
    trainable = tune.with_parameters(FederatedTrainable, workload=workload, data=data, budget=budget)
    trainable.declared_names = frozenset(workload.hyperparameters())
    return ray_internals.known_as_itself(trainable), dict(domains.domains)


def objective(
    algo: Algo, scenario: str = "", space: str = "default", objective: str = METRIC, **options: Any
) -> OptunaObjective:
    """A function for `optuna.Study.optimize`; create the study with its `direction` ("maximize", or "minimize" a loss).

    Its first trial refuses a study in another direction, or in several.

    objective: one metric, as for --objective.  Other arguments as for `tunable`.

    >>> import fedtune, optuna
    >>> objective = fedtune.objective("fedprox", "digits-w4", rounds=2, clients=4)
    >>> study = optuna.create_study(direction=objective.direction)
    >>> study.optimize(objective, n_trials=2)
    >>> sorted(study.best_params)
    ['local_epochs', 'lr', 'momentum', 'mu']
    """
    from fedtune.core.process import turn

    with turn():
        given, workload, domains = _ranges(algo, scenario, space, options)
        found = objectives.parse(objective, workload.measures.selectable)
        if len(found) > 1:
            raise UserError(f"an Optuna objective function has one objective, but got {objective!r}; give one")
        return OptunaObjective(given, workload, domains, found[0])


class OptunaObjective:
    """Trains the configuration that an Optuna trial suggests; its value is the objective after the last round.

    Every round is reported, and the trial ends when the study's pruner says so.  A trial that diverges gets the worst
    possible value, 0 for an accuracy, and the attribute `diverged`, so the sampler learns to avoid that region.  If the
    metric has no worst value, the trial is pruned.

    Trials of `n_jobs` threads take turns, round by round, with the same values as one after the other.  To train in
    parallel use processes: `tunable`, or a study in a storage that several processes optimize.
    """

    def __init__(
        self,
        options: ExperimentOptions,
        workload: Workload,
        space: Space,
        objective: objectives.Objective = objectives.ACCURACY,
    ) -> None:
        """Load the data and choose the executor once for all trials."""
        self.workload, self.space, self.objective = workload, space, objective
        self._data = _prepared(options, workload)
        self.workload = workload.trainer.settled(workload, self.default, self._data[0])

    @property
    def direction(self) -> str:
        """The direction for the study: `optuna.create_study(direction=objective.direction)`.

        >>> import fedtune
        >>> fedtune.objective("fedavg", "digits-w4", objective="val_loss", clients=4).direction
        'minimize'
        """
        return {"max": "maximize", "min": "minimize"}[self.objective.mode]

    @property
    def default(self) -> dict[str, Any]:
        """The default configuration, moved into the space: `study.enqueue_trial(objective.default)` tries it first.

        >>> import fedtune
        >>> fedtune.objective("fedavg", "digits-w4", clients=4).default
        {'lr': 0.03, 'momentum': 0.9, 'local_epochs': 1}
        """
        from fedtune.tuning.space import inside

        return inside(self.space, self.workload.default())[0]

    def __call__(self, trial: optuna.Trial) -> float:
        """The objective after the last round; the trial's attributes hold that round's metrics."""
        import optuna

        from fedtune.tuning.optuna_searcher import distributions, suggest

        self._require_direction(trial)
        config = suggest(trial, distributions(self.space), self.space.conditions)
        row: dict[str, Any] = {}
        value, run = 0.0, self.workload.trainer.trial(self.workload, config, self._data)
        try:
            while run.round < run.rounds:
                row = run.step()
                if self.objective.name == "seconds":
                    value += row["seconds"] + row["eval_seconds"]
                else:
                    value = float(row[self.objective.name])
                trial.report(value, row["round"])
                if trial.should_prune():
                    raise optuna.TrialPruned
        except Diverged as error:
            trial.set_user_attr("diverged", str(error))
            if (worst := self.workload.measures.worst(self.objective.name)) is None:
                raise optuna.TrialPruned from error
            return worst
        finally:
            run.close()
            for name, figure in row.items():
                trial.set_user_attr(name, figure)
        return value

    def _require_direction(self, trial: optuna.Trial) -> None:
        study = getattr(trial, "study", None)  # a FixedTrial has none
        found = [d.name.lower() for d in study.directions] if study else [self.direction]
        if found != [self.direction]:
            several = "; fedtune.Search takes several objectives" * (len(found) > 1)
            raise UserError(
                f"a study of {self.objective.name} has one direction, {self.direction}, but this one has "
                f"{' and '.join(found)}; create it with direction=objective.direction{several}"
            )


def _ranges(
    algo: Algo, scenario: str, name: str, options: Mapping[str, Any]
) -> tuple[ExperimentOptions, Workload, Space]:
    from fedtune.tuning import space

    given = options_of(ExperimentOptions, algo, scenario, options)
    workload = given.workload()
    loaded = space.load(name, workload)
    if loaded.is_grid:
        raise UserError(
            f"a space for your own search must consist of ranges, but {name!r} of {given.algo} is a list of "
            f"{len(loaded.points)} points; give another, or train each point with fedtune.train"
        )
    return given, workload, loaded


def _prepared(options: ExperimentOptions, workload: Workload, seeds: int = 1) -> list[Any]:
    trains = workload.trainer
    data = trains.load(workload, options.data_dir, options.download)
    trains.report(workload, data)
    return [trains.prepare(workload, data, workload.seed + i) for i in range(seeds)]
