"""A workload: what is tuned, whatever trains it.

The built-in engine trains one kind (`fedtune.experiment.experiment.Experiment`), a program of yours is another
(`fedtune.programs.workload.Program`).  Everything above the two (searches, comparisons, fresh seeds, tables, reports)
sees the classes of this module only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter

Config = dict[str, Any]
Row = dict[str, Any]  # the metrics of a round, with `round`, `seconds` of training and `eval_seconds`


class Place(NamedTuple):
    """Where a run happens: its folder for what it leaves, a name that no other run has, its share of the machine."""

    folder: Path | None = None  # a temporary one, if not given
    name: str = ""
    cpus: float = 1
    gpus: float = 0
    gpu_ids: tuple[str, ...] = ()  # the machine's numbers of its GPUs


HERE = Place()


class Workload(Protocol):
    """What is tuned: hyperparameters, metrics and length, as values that can be pickled and recorded."""

    trainer: ClassVar[str]  # the module that trains it: see `Trainer`

    @property
    def name(self) -> str:
        """The name in tables: an algorithm's or a program's."""

    @property
    def seed(self) -> int:
        """The first seed of a search's trials."""

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""

    @property
    def report_every(self) -> int:
        """The rounds from one row to the next; a whole run has a multiple of them."""

    @property
    def own(self) -> tuple[Any, ...]:
        """The user's files that it uses."""

    @property
    def pinned(self) -> Mapping[str, Any]:
        """Hyperparameters with a fixed value."""

    @property
    def source(self) -> Any:
        """What its data depend on besides the seed; equal for equal data."""

    @property
    def selectable(self) -> Mapping[str, str]:
        """The metrics that may select, with their directions; "" if the direction must be given."""

    def worst(self, metric: str) -> float | None:
        """The worst possible value of a metric that may select; None if there is none."""

    def figures(self, last: Mapping[str, Any]) -> list[str]:
        """The metrics of a run's last row that tables of fresh-seed runs keep."""

    @property
    def objective(self) -> str:
        """What a search optimises if nothing is said."""

    @property
    def structural(self) -> tuple[str, ...]:
        """Hyperparameters that cannot change within a run."""

    @property
    def schedule(self) -> tuple[str, ...]:
        """Hyperparameters that decide when others have an effect."""

    @property
    def late(self) -> set[str]:
        """Hyperparameters that matter only in late rounds, if at all."""

    @property
    def depends_on_horizon(self) -> bool:
        """Whether a longer run differs from a shorter one from the start."""

    @property
    def repeatable(self) -> bool:
        """Whether a run with the same seed gives the same numbers."""

    @property
    def continues(self) -> bool:
        """Whether a saved run goes on where it was; otherwise it begins again, silently until there."""

    @property
    def common(self) -> set[str]:
        """Hyperparameters that all workloads of a comparison share, so that all tune them or none."""

    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Its hyperparameters."""

    def configuration(self, config: Config) -> Config:
        """The value of every hyperparameter under a configuration."""

    def default(self) -> Config:
        """The default of every hyperparameter."""

    def spaces(self) -> dict[str, Any]:
        """Its search spaces by name."""

    @property
    def conditions(self) -> Mapping[str, Mapping[str, Any]]:
        """Where a hyperparameter of the derived space exists: with which values of others."""

    def searched(self) -> list[str]:
        """What is searched where no space says it."""

    def idle(self, config: Config) -> dict[str, str]:
        """Hyperparameters without an effect under a configuration, with reasons."""

    def first_rounds(self, config: Config, names: Iterable[str]) -> dict[str, int]:
        """The first round whose evaluation can depend on each of these hyperparameters."""

    def sends_alike(self, searched: Iterable[str]) -> bool:
        """Whether all configurations certainly send the same number of bytes in every round."""

    def participation(self, share: float) -> float:
        """The participation under which clients send at most this share of what they send now; 0: none does."""

    def with_seed(self, seed: int) -> Self:
        """The same with another seed."""

    def as_searched(self) -> Self:
        """The same with runs on single seeds that train as trials do, where those of the final check do otherwise."""

    def as_recorded(self, record: Mapping[str, Any]) -> Self:
        """The same with what the record of its run says was chosen when it began."""

    def on_gpus(self, gpus: float) -> Self:
        """The same with this share of a GPU for each run; UserError if that does not fit."""

    def folder_name(self, setting: str) -> str:
        """The beginning of a study folder's name."""

    def title(self, setting: str) -> str:
        """What is trained, in words."""

    def describe(self) -> list[str]:
        """Lines about what is trained, for the start of a search."""

    def setting_words(self, name: str, given: Mapping[str, Any]) -> str:
        """The setting in words.  name: of the scenario; given: fields of it that the user gave."""

    def to_setting(self, name: str) -> dict[str, Any]:
        """What the record of a comparison holds of the setting."""

    def typed_options(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The options that describe it, with typed values and whole paths.  fields: of a scenario, as given."""

    def again(self, config: Config, best: Path, *where: str) -> str:
        """The command that trains the best configuration once more.  best: its best.yaml."""

    def to_plain(self) -> Config:
        """All that a run's numbers depend on, as plain values."""

    def to_record(self) -> dict[str, Any]:
        """What the record of a run holds of it."""

    def to_best(self, setting: str, config: Config, rounds: int | None) -> dict[str, Any]:
        """What best.yaml holds of it, with a configuration; rounds: if other than its own."""


class Run(Protocol):
    """A configuration in training on one or several seeds, from its first round to its last: a trial."""

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

    def close(self) -> None:
        """End everything that the run started; may be called twice."""


class SeedRun(Protocol):
    """A run on one seed of several that train together."""

    rounds: int

    def kept(self) -> Any:
        """The last round, with its `row`, so that `clients` can score it later."""

    def test(self) -> Row:
        """The last round's row with its test metrics."""

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""

    def clients(self, best: Any) -> list[tuple[str, int, Mapping[str, Any], Any]]:
        """Results of single clients in the last and the best round: which, round, columns, owner of a client."""


class SeededRuns(Protocol):
    """Runs of one configuration on several seeds."""

    runs: Sequence[Any]

    def step(self, some: Iterable[int] | None = None) -> dict[int, Row | Diverged | UserError]:
        """Train a round of the runs at these positions: for each its row, or how it diverged or failed."""

    def close(self) -> None:
        """End everything that the runs started; may be called twice."""


class Trainer(Protocol):
    """The functions of the module that trains a kind of workload."""

    def load(self, workload: Any, data_dir: str | None, download: bool) -> dict[str, Any]:
        """The data sets that it needs, by name."""

    def require(self, workload: Any, data: Mapping[str, Any], seeds: Sequence[int]) -> None:
        """UserError unless the data can be prepared for these seeds."""

    def report(self, workload: Any, data: Mapping[str, Any]) -> None:
        """Say what is worth knowing of the data as they are prepared."""

    def prepare(self, workload: Any, data: Mapping[str, Any], seed: int) -> Any:
        """The data of one seed, as runs take them."""

    def chance(self, data: Any) -> float | None:
        """The accuracy of a guess on prepared data; None if unknown."""

    def settled(self, workload: Any, config: Config, data: Any) -> Any:
        """The workload with everything chosen that a first look at the data decides."""

    def warm(self, workload: Any, config: Config, data: Any) -> None:
        """Train an unused round, as a process's first one takes seconds more."""

    def start(self, workload: Any, config: Config, data: Sequence[Any], at: Place = HERE) -> Run:
        """A run of a configuration.  data: of the workload's seed and of those after it."""

    def saved_round(self, folder: Path) -> int:
        """The round after which a run was saved there; any error for a folder that `load` cannot use."""

    def seeds_at_once(self, workload: Any, config: Config) -> int:
        """How many seeds should train together."""

    def seeded(self, workload: Any, config: Config, data: Mapping[int, Any], at: Place = HERE) -> SeededRuns:
        """Runs on several seeds.  data: prepared, by seed."""


def trainer(workload: Workload) -> Trainer:
    """What trains a workload: loaded by name, as its module may need PyTorch."""
    return cast(Trainer, importlib.import_module(workload.trainer))
