"""Write the parts of pages that follow from the code's declarations.

    python docs/generate.py

A part stands between the lines `<!-- NAME -->` and `<!-- end -->`; what stands around them is written by hand.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import fedtune
from fedtune.__main__ import COMMANDS, GROUPS
from fedtune.analysis import plots
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.metrics import METRICS
from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm, first_round
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.tuning import schedulers, shared
from fedtune.tuning.space_types import ByRounds, Under, domain_text
from fedtune.user_code import command_help

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import sentences  # noqa: E402

TEXTS = {".py", ".js", ".css", ".html", ".j2", ".sh"}
PAGES = (
    *(f"reference/{name}.md" for name in ("algorithms", "commands", "metrics", "python", "scenarios", "sentences")),
    "how-to/search.md",
)
ABOUT = "background/architecture.md"  # its figures of lines may be a tenth old
ALGORITHMS = {name: registry.find(name) for name in registry.names()}


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table; `|` within a cell is escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def text_of(cls: type[Algorithm]) -> str:
    """The text that an algorithm's file opens with."""
    return (sys.modules[cls.__module__].__doc__ or "").strip()


def hyperparameter_table(cls: type, instance: Algorithm | None = None) -> str:
    """The hyperparameters that a class declares; with an instance also the first round that each has an effect in."""
    rows = []
    for name, hp in hyperparameters(cls).items():
        first = (first_round(instance, name),) if instance else ()
        rows.append((f"`{name}`", hp.symbol, hp.default, values(hp), *first, hp.help))
    effect = ("first effect",) if instance else ()
    return table(("name", "symbol", "default", "range", *effect, "what it is"), rows)


def values(hp: Hyperparameter) -> str:
    """A hyperparameter's range in words, its choices as code."""
    return ", ".join(f"`{choice}`" for choice in hp.choices) or hp.range_text()


def ideas() -> str:
    """A line per algorithm, which links to its section."""
    return table(("name", "idea"), [(f"[`{n}`](#{n})", text_of(c).splitlines()[0]) for n, c in ALGORITHMS.items()])


def sections() -> str:
    """A section per algorithm: its file's text and its hyperparameters."""
    parts = []
    for name, cls in ALGORITHMS.items():
        own = hyperparameter_table(cls, cls()) if hyperparameters(cls) else "It has no hyperparameters of its own."
        parts += [f"## {name}", f"```text\n{text_of(cls)}\n```", own]
    return "\n\n".join(parts)


def presets() -> str:
    """A row per hyperparameter and its values: which algorithms' presets differ how from their defaults."""
    rows: dict[tuple[str, ...], list[str]] = {}
    kinds = list(dict.fromkeys(["as_text", "as_published", *(k for cls in ALGORITHMS.values() for k in cls.presets)]))
    for name, cls in ALGORITHMS.items():
        own = hyperparameters(cls)
        for hp in dict.fromkeys(n for kind in kinds for n in cls.presets.get(kind, {})):
            text = str(own[hp].default) if hp in own else "the scenario's"
            values = [str(cls.presets.get(kind, {}).get(hp, "")) for kind in kinds]
            key = (hp, text, *values, (own.get(hp) or hyperparameters(Scenario)[hp]).help)
            rows.setdefault(key, []).append(name)
    lines = [(f"`{hp}`", ", ".join(who), *rest) for (hp, *rest), who in rows.items()]
    return table(("hyperparameter", "algorithms", "default", *kinds, "what it is"), lines)


def unlike_text() -> str:
    """A line per algorithm of whose paper no preset gives all; and those that have no `as_text`, and why."""
    lines = [f"- `{name}`: {cls.unlike_text};" for name, cls in ALGORITHMS.items() if cls.unlike_text]
    without = {n: c for n, c in ALGORITHMS.items() if "as_text" not in c.presets and not c.unlike_text}
    same, unread = (", ".join(f"`{n}`" for n, c in without.items() if c.as_in_text == text) for text in (True, False))
    return "\n".join(lines) + (
        f"\n\nThese have no `as_text`, because their defaults are the text: {same}.\n\nThese have none, because their "
        f"papers were not at hand. They follow descriptions, and the code of the authors or of libraries: {unread}.\n\n"
        "These have no `as_published`. Their authors released no code, or none that was at hand, or fedtune does not "
        f"follow it: {', '.join(f'`{n}`' for n, c in ALGORITHMS.items() if 'as_published' not in c.presets)}."
    )


def searched() -> str:
    """A row per hyperparameter that all share, and its range in every space."""
    declared = hyperparameters(Scenario) | {
        n: k for cls in reversed(ALGORITHMS.values()) for n, k in hyperparameters(cls).items() if n in shared.WIDE
    }

    def text(hp: Hyperparameter, ranges: Mapping[str, shared.Ends]) -> str:
        if hp.name not in ranges:
            return ""
        found = shared.domain(hp, ranges[hp.name], ranges is shared.WIDE)
        if isinstance(found, ByRounds):
            return f"{domain_text(found.of(1))}, of a trial at most {shared.LONGEST} or {shared.FEWEST} a round"
        kinds = found.domains.items() if isinstance(found, Under) else [("", found)]
        return "; ".join(f"{domain_text(domain)}{f' ({kind})' * bool(kind)}" for kind, domain in kinds)

    rows = [
        (f"`{name}`", text(hp, shared.DEFAULT), text(hp, shared.WIDE), hp.range_text(), hp.help)
        for name, hp in declared.items()
        if hp.searchable
    ]
    return table(("name", "in every `default`", "in every `wide`", "can be searched over", "what it is"), rows)


def metrics() -> str:
    """A row per metric, with its unit and what it is."""
    return table(("metric", "unit", "what"), [(f"`{name}`", m.unit, m.help) for name, m in METRICS.items()])


def scenarios() -> str:
    """A table for each family of names: the values that are usual in it, and by name what differs from them."""
    families: dict[str, dict[str, dict[str, Any]]] = {}
    for name, scenario in SCENARIOS.items():
        families.setdefault(name.partition("-")[0], {})[name] = vars(scenario)
    parts = []
    for family, members in families.items():
        usual = {}
        for field, default in vars(Scenario()).items():
            counts = Counter(values[field] for values in members.values())
            usual[field] = max(counts, key=lambda value: (counts[value], value == default))  # noqa: B023
        rows = [(f"`{name}`", differing(values, usual)) for name, values in members.items()]
        parts += [f"Usual in `{family}-…`: {differing(usual, vars(Scenario()))}."] * (usual != vars(Scenario()))
        parts += [table(("name", "what differs"), rows)]
    return "\n\n".join(parts)


def differing(values: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """The values that are not those of others, each with its name."""
    return ", ".join(f"`{name}` {value}" for name, value in values.items() if value != others[name])


def defaults() -> str:
    """The fields of a setting that are no hyperparameters, with their defaults."""
    rows = [
        (f"`{f.name}`", getattr(Scenario(), f.name), f.metadata["help"])
        for f in fields(Scenario)
        if f.name not in hyperparameters(Scenario)
    ]
    return table(("field", "value", "what it is"), rows)


def early_stopping() -> str:
    """A row per scheduler, with what it does."""
    return table(("`--scheduler`", "what"), [(f"`{name}`", kind.help) for name, kind in schedulers.KINDS.items()])


PUBLIC = {  # the names that the page on Python shows; of `fedtune` and `plots` all that is public
    "fedtune": tuple(name for name in fedtune.__all__ if name != "__version__"),
    "fedtune.api": ("OptunaObjective",),
    "fedtune.tuning.space": ("tunable", "with_shared", "lines"),
    "fedtune.analysis.frames": ("load", "clients", "by_budget", "record", "hyperparameters"),
    "fedtune.analysis.plots": tuple(name for name in plots.__all__ if name != "RESAMPLES"),
    "fedtune.analysis.models": ("load", "of_trial"),
    "fedtune.studies.published": ("cells",),
}


def public(module: str) -> str:
    """A row per public name with what it is; on the site, its whole docstring below."""
    rows = []
    for name in PUBLIC[module]:
        said = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        rows.append((f"`{name}`", " ".join(said.partition("\n\n")[0].split())))
    shown = ",".join(f"{module}.{name}" for name in PUBLIC[module])
    return table(("name", "what it is"), rows) + f"\n\n<!-- python: {shown} -->"


def commands() -> str:
    """A table of commands for each thing that one wants."""
    return "\n\n".join(
        f"## {want.capitalize()}\n\n"
        + table(("command", "what it does"), [(f"`fedtune {n}`", w) for n, w in of.items()])
        for want, of in GROUPS.items()
    )


def options() -> str:
    """A row per option of any command: how it is typed, which commands take it, and its help."""
    by_name: dict[tuple[str, str], list[str]] = {}
    for command in COMMANDS:
        parser = importlib.import_module(f"fedtune.commands.{command}").parser()
        for action in parser._actions:
            if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help":
                key = command_help.spelled(action), action.help.replace("%%", "%").partition("; there are")[0]
                by_name.setdefault(key, []).append(f"`{command}`")
    rows = [(f"`{spelled}`", ", ".join(of), text) for (spelled, text), of in sorted(by_name.items())]
    return table(("option", "of", "what it does"), rows)


SEARCH = "driver optuna_searcher promotion saved_state schedulers searchers trainable".split()
ROOMS: dict[str, tuple[float, str]] = {  # thousand lines that a room may have, and its files
    "users' code": (1.3, "fedtune/user_code/* fedtune/experiment/user_* fedtune/nn/user_* fedtune/runs/user_*"),
    "stack or loop": (0.75, "fedtune/engine/executor_choice.py fedtune/engine/client_errors.py"),
    "programs and Flower": (3.3, "fedtune/programs/*"),
    "Ray": (1.1, "fedtune/cluster/*"),
    "options, records, ranges": (
        1.9,
        "fedtune/tuning/options/* fedtune/tuning/ranges.py fedtune/tuning/space_types.py fedtune/runs/schema.py",
    ),
    "searchers, driver, callbacks": (
        2.5,
        f"{' '.join(f'fedtune/tuning/{n}*' for n in SEARCH)} fedtune/tuning/callbacks/*",
    ),
    "report and live page": (3.2, "fedtune/reporting/**/*"),
    "comparison": (1.8, "fedtune/studies/comparison/*"),
    "users' data": (2.1, "fedtune/data/user_*"),
    "conformance": (1.5, "fedtune/conformance/*"),
    "research": (2.4, "analysis/*/*.py analysis/reproduce.py analysis/tabulate.py analysis/simulate.py"),
    "benchmarks": (1.6, "benchmarks/*"),
    "`fedtune/`": (34.5, "fedtune/**/*"),
    "`analysis/`": (6, "analysis/**/*"),
    "`tests/`": (38, "tests/**/*"),
}


def thousand_lines(room: str) -> float:
    """Lines of all that is run or drawn in a room, by the thousand."""
    files = {file for pattern in ROOMS[room][1].split() for file in FOLDER.parent.glob(pattern) if file.suffix in TEXTS}
    return sum(len(file.read_text().splitlines()) for file in files) / 1000


def rooms() -> str:
    """A row per room: its lines, and how many it may have."""
    return table(
        ("room", "thousand lines", "budget"), [(n, f"{thousand_lines(n):.1f}", b) for n, (b, _) in ROOMS.items()]
    )


PARTS = {
    "commands": commands,
    "options": options,
    **{f"public: {module}": partial(public, module) for module in PUBLIC},
    "ideas": ideas,
    "hyperparameters of every algorithm": lambda: hyperparameter_table(Scenario),
    "presets": presets,
    "unlike the text": unlike_text,
    "searched alike": searched,
    "sections": sections,
    "metrics": metrics,
    "scenarios": scenarios,
    "defaults": defaults,
    "schedulers": early_stopping,
    "sentences": lambda: sentences.page(),
    "rooms": rooms,
}


def filled(page: str) -> str:
    """The page with its generated parts as the code has them now."""
    return re.sub(
        r"(?ms)^(<!-- ([^\n]+) -->\n).*?^(<!-- end -->)$", lambda m: f"{m[1]}\n{PARTS[m[2]]()}\n\n{m[3]}", page
    )


def main() -> None:
    """Bring every page up to date."""
    for name in (*PAGES, ABOUT):
        (FOLDER / name).write_text(filled((FOLDER / name).read_text()))


if __name__ == "__main__":
    main()
