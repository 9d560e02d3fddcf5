"""A budget study: a comparison made once at each level of ε, megabytes or device seconds, sharing nothing but seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, near, say, say_table, several
from fedtune.experiment.scenario import OF_PRIVACY
from fedtune.runs import provenance
from fedtune.runs.files import LEVELS, OVER, WAITING, RunFiles, levels_of, write_whole
from fedtune.studies.comparison import comparison, text
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison.level_results import LevelResults
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import space as spaces

UNITS = {"comm_mb": "mb", "sim_seconds": "sim_seconds"}  # of the trials' budget that a level is
FIELDS = ("privacy", "epsilon", "population", "cohort", "sampling", "privacy_delta")  # none of them without privacy
SHARED = "scenario_name scenario objectives constraints searches seeds trials margin".split()  # by all levels


def plans(options: ComparisonOptions) -> list[ComparisonPlan]:
    """The comparison at each level, the lowest first; UserError for whatever is wrong with one."""
    name, _, values = options.at.partition("=")
    given: dict[str, Any] = {"budget": options.budget, "budget-unit": options.budget_unit}
    if name == "epsilon":
        given = {n: options.fields.get(n) for n in ("epsilon", "privacy")}
    if also := [f"--{n} {value}" for n, value in given.items() if value not in (None, "rounds", "client")]:
        raise UserError(f"--at {name} sets --{' and --'.join(given)}, but got {', '.join(also)}, too; leave it out")
    folder = comparison_plan.new_folder(options)
    each = list[ComparisonPlan]()
    for value in values.split(","):
        more: dict[str, Any] = {"at": "", "name": f"{name}={value}", "storage_path": str(folder)}
        with terminal.silent() if each else nullcontext():  # all say the same
            each.append(comparison_plan.make(dataclasses.replace(options, **more, **_level(options, name, value))))
        if back := [n for n in each[0].left_out if n not in each[-1].left_out]:
            say(f"note: {text.listed(back)} {'take' if len(back) > 1 else 'takes'} part at {each[-1].folder.name}")
    return each


def _level(options: ComparisonOptions, name: str, value: str) -> dict[str, Any]:
    """The options that make a level."""
    if name in UNITS:
        return {"budget_unit": UNITS[name], "budget": float(value)}
    if value != "inf":
        return {"fields": {**options.fields, "privacy": "client", "epsilon": float(value)}}
    return {
        "fields": {n: v for n, v in options.fields.items() if n not in FIELDS},
        "set": {n: v for n, v in options.set.items() if n not in (*FIELDS, *OF_PRIVACY)},
        "vary": tuple(v for v in options.vary if spaces.named(v) not in OF_PRIVACY),
    }


def dry_run(options: ComparisonOptions) -> int:
    """Say what the comparisons would do, and about how long all would take; the exit status.  Nothing is started."""
    return comparison.dry_run(*plans(options))


def run(options: ComparisonOptions) -> int:
    """Make the comparisons, one after the other, and then what they say together; the exit status."""
    each = plans(options)
    folder = each[0].folder.parent
    files, (record, *others) = RunFiles(folder, LEVELS), [provenance.of_scenario(c.to_record()) for c in each]
    fields = record.get("scenario", {}).items()
    record["scenario"] = {n: v for n, v in fields if all(of.get("scenario", {}).get(n) == v for of in others)}
    files.make()
    for c in each:
        comparison.set_down(c)
    files.add(**{n: record[n] for n in (*provenance.origin(), *SHARED) if record.get(n)})
    names = dict.fromkeys(name for c in each for name in c.compared)
    files.add(options=options.to_record(), algorithms=[*names], levels=[c.folder.name for c in each])
    if private := each[0].private:
        files.add(at=f"ε is that of one run at δ = {private.delta:.3g}" + f", {private.as_if}" * bool(private.as_if))
    files.write(WAITING)
    return resume(folder, {})


def resume(folder: Path, changes: Mapping[str, Any]) -> int:
    """Go on with the comparisons that are not over, then write and show what all say; the exit status.

    changes: options with new values, for instance max_concurrent.
    """
    files = RunFiles(folder, LEVELS)
    with files.lock():
        record = files.record_with("levels", "algorithms")
        again = {} if record["state"] == WAITING else provenance.record_for_resume(record)
        files.add(**{n: v for n, v in (record | again).items() if n not in ("format", "state", "reason")})
        with comparison.recorded(files) as finish:
            levels = levels_of(folder)
            for i, level in enumerate(levels, 1):
                if level.record["state"] in OVER:
                    continue
                say(f"\n{i} of {several(len(levels), 'level')}: {level.name}")
                if status := comparison.resume(level.path, changes):
                    finish("interrupted")
                    return status
            found = LevelResults.read(folder)
            _report(found, files)
            finish("finished", outcome=found.outcome)
    return 0


def _report(found: LevelResults, files: RunFiles) -> None:
    """Write and show the tables."""
    write_whole(files.levels_file, found.table.to_csv(index=False))
    write_whole(files.against_file, found.against.to_csv(index=False))
    tables = [f"**{title}**\n\n{text.markdown(table)}" for title, table, _ in found.titled]
    notes = [f"- {line}\n" for line in found.notes]
    heading = f"# {found.title}\n\n{text.in_markdown(found.outcome)}\n"
    write_whole(files.markdown_file, "\n".join([heading, *tables, *notes]))
    say(f"\n{found.outcome}")
    for title, table, _ in found.titled:
        say_table(title, table, table.values.tolist(), left=[*table])
    for line in found.notes:
        say(line)
    say(f"folder: {near(files.path)}")
    say(f"report: {command_line('report', files.path)}")
