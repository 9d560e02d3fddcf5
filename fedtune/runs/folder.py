"""A study's folder and its contents, during the run and after it."""

from __future__ import annotations

import html
import warnings
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal
from fedtune.core.terminal import several
from fedtune.runs import reading
from fedtune.runs.files import RunFiles

if TYPE_CHECKING:
    import optuna
    import pandas as pd

    from fedtune.experiment.scenario import Scenario

SHOWN = 10  # trials in a notebook's table
COLUMNS = ("trial", "status", "rounds")


class StudyFolder(RunFiles):
    """A run: its files, its record, and its results so far.

    run = RunFolder("runs/gfpl-digits-w4-20261121-050812")
    run.best["hyperparameters"], run.trials, run.rounds
    """

    @property
    def state(self) -> str:
        """The run's state: running, finished, …, or abandoned if it should be running but has no driver.

        >>> import fedtune
        >>> fedtune.Study("runs/NAME").state
        'finished'
        """
        return self.state_in(self.record)

    @property
    def scenario(self) -> Scenario:
        """The scenario of the run, with all its fields; UserError for a record without one."""
        from fedtune.experiment.scenario import Scenario
        from fedtune.runs import user_copies

        user_copies.known(self.path, self.record)
        try:
            return Scenario(**self.record_with("scenario")["scenario"])
        except (TypeError, UserError) as error:
            raise self.damaged(error) from error

    @property
    def trials(self) -> pd.DataFrame:
        """A row per trial (see fedtune.runs.frames).

        >>> import fedtune
        >>> trials = fedtune.Study("runs/NAME").trials
        >>> int((trials["status"] == "stopped").sum())
        14
        """
        from fedtune.runs import frames

        return frames.load(self.path)[0]

    @property
    def rounds(self) -> pd.DataFrame:
        """A row per trial and round (see fedtune.runs.frames).

        >>> import fedtune
        >>> rounds = fedtune.Study("runs/NAME").rounds
        >>> round(float(rounds["val_acc"].max()), 3)
        0.918
        """
        from fedtune.runs import frames

        return frames.load(self.path)[1]

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client of every fresh-seed run (see tables.CLIENTS); UserError if there is none yet."""
        from fedtune.runs import tables

        return tables.load_clients(self.path)

    @property
    def best(self) -> dict[str, Any]:
        """The content of best.yaml: algorithm, scenario, hyperparameters, and how they were found; UserError if
        missing.

        >>> import fedtune
        >>> fedtune.Study("runs/NAME").best["hyperparameters"]["components"]
        3
        """
        try:
            return reading.best(self.best_file)
        except (OSError, ValueError) as error:
            name = self.best_file.name
            raise UserError(f"{self.path} has no best configuration: {name}: {reading.short(error)}") from error

    @property
    def study(self) -> optuna.Study | None:
        """The Optuna study so far; None if there is none (population based training).

        UserError if it is damaged.

        >>> import fedtune
        >>> len(fedtune.Study("runs/NAME").study.trials)
        24
        """
        if not self.study_file.exists():
            return None
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                storage = JournalStorage(JournalFileBackend(str(self.study_file)))
            return optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
        except Exception as error:  # whatever Optuna raises on a line that it did not write
            raise reading.damaged(self.study_file, error) from error

    def _repr_html_(self) -> str:
        """A notebook's view: the run's state and its best trials."""
        from fedtune.runs import frames, tables

        goal = Goal.from_record(self.record)
        trials = tables.ranked(self.trials, goal)
        shown = dict.fromkeys([*COLUMNS, goal.first.column, "last_val_acc", "last_test_acc", "test_round"])
        names = [frames.CONFIG + name for name in frames.hyperparameters(trials)]
        table = trials[[*shown, *names]].head(SHOWN).rename(columns=lambda c: c.removeprefix(frames.CONFIG))
        head = f"{self.path}: {self.record['algorithm']}, {self.state}, {several(len(trials), 'trial')}"
        return f"<p>{html.escape(head)}</p>{table.to_html(index=False, float_format='{:.4g}'.format)}"
