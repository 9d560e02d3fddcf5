"""fedtune from Python: searches and their folders, one configuration, and the pieces for your own search.

Arguments have the names of the command line's options (trials, scheduler, seeds_per_trial, …), of a scenario's fields
(rounds, clients, lr, …) or of the algorithm's hyperparameters, which are then held fixed.  An invalid argument raises
a `UserError` of one line that names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from fedtune.core import objectives
from fedtune.core.errors import Diverged, UserError, unknown
from fedtune.core.hyper import hyperparameters, typed
from fedtune.core.metrics import METRIC
from fedtune.core.workload import Workload, trainer
from fedtune.experiment import registry, user_algorithms
from fedtune.experiment.scenario import Scenario
from fedtune.programs.naming import is_program
from fedtune.runs.folder import StudyFolder
from fedtune.tuning.options.options import ExperimentOptions, SearchOptions
from fedtune.user_code import user_files

if TYPE_CHECKING:
    import optuna
    from ray import tune

    from fedtune.data.federation import Federation
    from fedtune.experiment.experiment import Experiment
    from fedtune.tuning.space import Space

Options = TypeVar("Options", bound=ExperimentOptions)
Algo = str | Path | type  # a name, a file, or an Algorithm's class


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
        self.options = _options(SearchOptions, algo, scenario, options)
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
        changed = {
            f.name: value
            for f in dataclasses.fields(self.options)
            if (value := getattr(self.options, f.name)) != f.default and value != {}
        }
        return f"Search({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


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


def train(
    algo: Algo,
    scenario: str = "",
    config: Mapping[str, Any] | None = None,
    save: str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Train one configuration from its first round to its last, without Ray.  Returns one row of metrics per round.

    PyTorch uses one thread meanwhile, as in a trial.

    algo      a name, FILE.py[:NAME], or an Algorithm's class
    config    hyperparameters of the algorithm or the scenario; the others have their defaults
    save      a new file for the trained model: for `start_from` of another call, or `fedtune.analysis.models.load`
    options   seed, device, data_dir, start_from, …, the scenario's fields, and hyperparameters as in config

    UserError for invalid arguments; Diverged if a loss or weights become NaN or infinite.

    >>> import fedtune
    >>> rows = fedtune.train("fedprox", "digits-w4", {"mu": 0.1}, rounds=2, clients=4, seed=3)
    >>> rows["round"].tolist()
    [1, 2]
    >>> bool(rows["val_acc"].between(0, 1).all())
    True
    """
    from fedtune.core.process import at_work
    from fedtune.core.threads import one_thread
    from fedtune.engine import model_file
    from fedtune.engine.simulation import Simulation

    with at_work(), one_thread():
        given = _options(ExperimentOptions, algo, scenario, options)
        experiment = given.experiment()
        values = typed(experiment.hyperparameters(), {} if config is None else config)
        if save and Path(save).exists():
            raise UserError(f"save needs a new file, but {save} exists; give another")
        simulation = Simulation(experiment, values, _federation(given, experiment))
        rows = pd.DataFrame(simulation.step() for _ in range(simulation.setup.scenario.rounds))
        if save:
            model_file.write(Path(save), experiment, values, simulation)
    return rows


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

    from fedtune.core.budget import Budget
    from fedtune.core.process import turn
    from fedtune.tuning.space import inside
    from fedtune.tuning.trainable import FederatedTrainable, known_as_itself

    with turn():
        given, workload, domains = _ranges(algo, scenario, space, options)
        data = _prepared(given, workload, SearchOptions(seeds_per_trial=seeds_per_trial).seeds_per_trial)
        workload = trainer(workload).settled(workload, inside(domains, workload.default())[0], data[0])
    budget = Budget("rounds", workload.rounds)
    trainable = tune.with_parameters(FederatedTrainable, workload=workload, data=data, budget=budget)
    trainable.declared_names = frozenset(workload.hyperparameters())
    return known_as_itself(trainable), dict(domains.domains)


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
        found = objectives.parse(objective, workload.selectable)
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
        self.workload = trainer(workload).settled(workload, self.default, self._data[0])

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
        {'lr': 0.01, 'momentum': 0.5, 'local_epochs': 1}
        """
        from fedtune.tuning.space import inside

        return inside(self.space, self.workload.default())[0]

    def __call__(self, trial: optuna.Trial) -> float:
        """The objective after the last round; the trial's attributes hold that round's metrics."""
        import optuna

        from fedtune.tuning.optuna_searcher import distributions, suggest

        self._require_direction(trial)
        config = suggest(trial, distributions(self.space.domains), self.space.conditions)
        row: dict[str, Any] = {}
        value, run = 0.0, trainer(self.workload).start(self.workload, config, self._data)
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
            if (worst := self.workload.worst(self.objective.name)) is None:
                raise optuna.TrialPruned from error
            return worst
        finally:
            run.close()
            for name, figure in row.items():
                trial.set_user_attr(name, figure)
        return value

    def _require_direction(self, trial: optuna.Trial) -> None:
        """UserError for a study that goes another way, or several: its best trial would be another."""
        study = getattr(trial, "study", None)  # a FixedTrial has none
        found = [d.name.lower() for d in study.directions] if study else [self.direction]
        if found != [self.direction]:
            raise UserError(
                f"a study of {self.objective.name} has one direction, {self.direction}, but this one has "
                f"{' and '.join(found)}; create it with direction=objective.direction"
                + ("; fedtune.Search takes several objectives" if len(found) > 1 else "")
            )


def _options(cls: type[Options], given_algo: Algo, scenario: str, given: Mapping[str, Any]) -> Options:
    """Options from arguments of Python: options by name, scenario fields, and searchable to hold fixed."""
    algo = user_algorithms.name_of(given_algo) if isinstance(given_algo, type) else str(given_algo)
    if is_program(algo):
        from fedtune.programs import program_file  # imported here, because pydantic takes a moment to load

        theirs, searchable = ["rounds"], list(program_file.read(algo).hyper)
    else:
        theirs = [f.name for f in dataclasses.fields(Scenario)]
        searchable = list(hyperparameters(registry.find(user_files.take_each(algo, registry.names())[0])))
    # start="own" is an option, but start=2 is GFPL's hyperparameter
    own = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in searchable or given.get(f.name) in f.metadata.get("choices", ())
    ]
    values = {name: value for name, value in given.items() if name in own}
    fields, pinned = dict(values.pop("fields", {})), dict(values.pop("set", {}))
    for name, value in given.items():
        if name in theirs:
            fields[name] = value
        elif name in searchable and name not in own:
            pinned[name] = value
        elif name not in own:
            raise unknown("argument", name, [*own, *theirs, *searchable])
    return cls(algo=algo, scenario=scenario, fields=fields, set=pinned, **values)


def _ranges(
    algo: Algo, scenario: str, name: str, options: Mapping[str, Any]
) -> tuple[ExperimentOptions, Workload, Space]:
    """The workload, and the space of that name; UserError if the space is a list of points."""
    from fedtune.tuning import space

    given = _options(ExperimentOptions, algo, scenario, options)
    workload = given.workload()
    loaded = space.load(name, workload)
    if loaded.is_grid:
        raise UserError(
            f"a space for your own search must consist of ranges, but {name!r} of {given.algo} is a list of "
            f"{len(loaded.points)} points; give another, or train each point with fedtune.train"
        )
    return given, workload, loaded


def _prepared(options: ExperimentOptions, workload: Workload, seeds: int = 1) -> list[Any]:
    """The data of a workload's seed and of those after it, as runs take them."""
    trains = trainer(workload)
    data = trains.load(workload, options.data_dir, options.download)
    trains.report(workload, data)
    return [trains.prepare(workload, data, workload.seed + i) for i in range(seeds)]


def _federation(options: ExperimentOptions, experiment: Experiment) -> Federation:
    from fedtune.experiment import partitioning

    return partitioning.make(experiment.scenario, experiment.seed, options.data_dir, options.download)
