"""A workload: what is tuned, whatever trains it.

The built-in engine trains one kind (`fedtune.experiment.experiment.Experiment`), a program of yours is another
(`fedtune.programs.workload.ProgramWorkload`).  Everything above the two sees the classes of this module only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from fedtune.core import metrics
from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter
from fedtune.core.metrics import over_seeds

Config = dict[str, Any]
Row = dict[str, Any]  # the metrics of a round, with `round`, `seconds` of training and `eval_seconds`


class Place(NamedTuple):
    """Where a run happens: its folder for what it leaves, a name that no other run has, its share of the machine."""

    folder: Path | None = None  # None: a temporary folder
    name: str = ""
    cpus: float = 1
    gpus: float = 0
    gpu_ids: tuple[str, ...] = ()  # the machine's numbers of its GPUs
    retries: int = 0  # how often what is ended from outside begins again here; Tune tries trials again itself


HERE = Place()


class Run(Protocol):
    """A configuration in training on one seed, from its first round to its last; what has no body is of each kind."""

    @property
    def round(self) -> int:
        """The rounds that are done."""

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""

    def step(self) -> Row:
        """Train until the next row, a round for most; its row.

        Diverged if training diverged; UserError for an error that would come again.
        """

    def test(self) -> Row:
        """The last round's row with its test metrics: scored now, if they were not before."""

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to continue."""

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved; ValueError if that belongs to another run."""

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        return []

    def kept(self) -> Any:
        """The last round, with its `row`, so that `clients` can score it later; None if single clients are unknown."""
        return None

    def clients(self, best: Any) -> list[tuple[str, int, Mapping[str, Any], Any]]:
        """Results of single clients in the last and the best round: which, round, columns, owner of a client."""
        return []

    def close(self) -> None:
        """End everything that the run started; may be called twice."""
        return  # by default nothing


class Runs:
    """A configuration in training on one seed or several: a trial, whose rows are means, or runs that are compared."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """runs: of each seed, at the same round."""
        self.runs = runs

    @property
    def round(self) -> int:
        """The rounds that are done."""
        return self.runs[0].round

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.runs[0].rounds

    def steps(self, positions: Iterable[int] | None = None) -> dict[int, Row | Diverged | UserError]:
        """Train a round of the runs at these positions, or of all: for each its row, or how it diverged or failed."""
        return {i: self.step_of(self.runs[i]) for i in (range(len(self.runs)) if positions is None else positions)}

    def step_of(self, run: Any) -> Row | Diverged | UserError:
        """A run's next row, or how it diverged or failed."""
        try:
            row: Row = run.step()
        except (Diverged, UserError) as error:
            return error
        return row

    def step(self) -> Row:
        """The mean row of a round on every seed; the error of the first that diverged or failed."""
        rows = []
        for row in self.steps().values():
            if isinstance(row, Exception):
                raise row
            rows.append(row)
        return over_seeds(rows)

    def test(self) -> Row:
        """The mean row of the last round with its test metrics."""
        return over_seeds([run.test() for run in self.runs])

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to continue, each seed's into a folder of its own."""
        for i, run in enumerate(self.runs):
            run.save(folder / str(i))

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved; ValueError if that belongs to another run."""
        for i, run in enumerate(self.runs):
            run.load(folder / str(i))

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        return [note for run in self.runs for note in run.take_notes()]

    def close(self) -> None:
        """End everything that the runs started; may be called twice."""
        for run in self.runs:
            run.close()


class Trainer:
    """How a kind of workload is trained.  The defaults suit what reads its data itself."""

    def source(self, workload: Any) -> Any:
        """What its data depend on besides the seed; equal for equal data."""
        return ""

    def load(self, workload: Any, data_dir: str | None, download: bool) -> dict[str, Any]:
        """The data sets that it needs, by name."""
        return {}

    def require(self, workload: Any, data: Mapping[str, Any], seeds: Sequence[int]) -> None:
        """UserError unless the data can be prepared for these seeds."""

    def report(self, workload: Any, data: Mapping[str, Any]) -> None:
        """Say what is worth knowing of the data as they are prepared."""

    def prepare(self, workload: Any, data: Mapping[str, Any], seed: int) -> Any:
        """The data of one seed, as runs take them."""

    def chance(self, data: Any) -> float | None:
        """The accuracy of a guess on prepared data; None if unknown."""
        return None

    def settled(self, workload: Any, config: Config, data: Any) -> Any:
        """The workload with everything chosen that a first look at the data decides."""
        return workload

    def warm(self, workload: Any, config: Config, data: Any) -> None:
        """Train an unused round, if a process's first one takes seconds more."""

    def seeds_at_once(self, workload: Any, config: Config) -> int:
        """How many seeds should train together."""
        return 1

    def start(self, workload: Any, config: Config, data: Mapping[int, Any], at: Place = HERE) -> Runs:
        """Runs of a configuration.  data: prepared, by seed."""
        raise NotImplementedError

    def trial(self, workload: Any, config: Config, data: Sequence[Any], at: Place = HERE) -> Runs:
        """Runs of a configuration.  data: prepared, of the workload's seed and of those after it."""
        return self.start(workload, config, dict(enumerate(data, workload.seed)), at)

    def saved_round(self, folder: Path) -> int:
        """The round after which `Runs` were saved there; any error for a folder that `load` cannot use."""
        raise NotImplementedError


class Measures(NamedTuple):
    """What the rows of a workload hold.  The defaults are those of what the engine trains."""

    # the metrics that may select, with their directions; "" if the direction must be given
    selectable: Mapping[str, str] = metrics.OBJECTIVES
    objective: Callable[[], str] = lambda: metrics.METRIC  # what a search optimises by default
    # the worst possible value of a metric that may select; None if there is none
    worst: Callable[[str], float | None] = metrics.worst
    # the metrics of a run's last row that tables of fresh-seed runs keep
    figures: Callable[[Mapping[str, Any]], list[str]] = metrics.figures
    growing: tuple[str, ...] = ()  # the metrics of the user's own that add up over rounds


class Traits(NamedTuple):
    """What is known of a workload's hyperparameters, by name, and of its runs."""

    # those of the derived space, which is searched if no space is given; where each exists: with which values of others
    searched: Mapping[str, Mapping[str, Any]]
    # those that exist only with certain values of others, wherever a space has both
    needs: Mapping[str, Mapping[str, tuple[Any, ...]]] = {}
    structural: tuple[str, ...] = ()  # cannot change within a run
    schedule: tuple[str, ...] = ()  # decide when others have an effect
    late: Collection[str] = ()  # matter only in late rounds, if at all
    common: frozenset[str] = frozenset()  # all workloads of a comparison share them, so that all tune them or none
    report_every: int = 1  # the rounds from one row to the next; a whole run has a multiple of them
    depends_on_horizon: bool = False  # whether a longer run differs from a shorter one from the start
    repeatable: bool = True  # whether a run with the same seed gives the same numbers
    continues: bool = True  # whether a saved run goes on where it was, or begins again and drops its first rows


class Workload(ABC):
    """What is tuned: hyperparameters, metrics and length, as values that can be pickled and recorded."""

    trainer: Trainer  # trains it
    seed: int  # the first seed of a search's trials
    own: tuple[Any, ...]  # the user's files that it uses
    pinned: dict[str, Any]  # hyperparameters with a fixed value

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in tables: an algorithm's or a program's."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The rounds of a whole run."""

    @property
    @abstractmethod
    def measures(self) -> Measures:
        """What its rows hold."""

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What is known of its hyperparameters and of its runs."""

    @abstractmethod
    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Its hyperparameters."""

    @abstractmethod
    def configuration(self, config: Config) -> Config:
        """The value of every hyperparameter under a configuration; UserError for unknown names and bad values."""

    def default(self, given: Config | None = None) -> Config:
        """The default of every hyperparameter, but for those that are given."""
        return self.configuration(given or {})

    def spaces(self) -> dict[str, Any]:
        """Its search spaces by name, besides the derived one."""
        return {}

    def idle(self, config: Config) -> dict[str, str]:
        """Hyperparameters without an effect under a configuration, with reasons."""
        return {}

    def known(self, config: Config) -> dict[str, float]:
        """Metrics at the end of a whole run that the configuration alone decides."""
        return {}

    def first_rounds(self, config: Config, names: Iterable[str]) -> dict[str, int]:
        """The first round whose evaluation can depend on each of these hyperparameters."""
        return dict.fromkeys(names, 1)

    @abstractmethod
    def with_seed(self, seed: int, checking: bool = False) -> Self:
        """The same with another seed.  checking: as the final check trains it."""

    def as_recorded(self, record: Mapping[str, Any]) -> Self:
        """The same with what the record of its run says was chosen when it began."""
        return self

    def describe(self) -> list[str]:
        """Lines about what is trained, for the start of a search."""
        return []

    @abstractmethod
    def to_plain(self) -> Config:
        """All that a run's numbers depend on, as plain values."""

    @abstractmethod
    def to_record(self) -> dict[str, Any]:
        """What the record of a run holds of it."""

    @abstractmethod
    def to_best(self, scenario: str, config: Config, rounds: int | None) -> dict[str, Any]:
        """What best.yaml holds of it, with a configuration.  scenario: its name; rounds: if other than its own."""
