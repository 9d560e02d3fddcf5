"""Where a report's numbers come from: command, time, seeds, machine, commit and versions, from the record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtune.core.terminal import several
from fedtune.reporting.findings import Findings, search_settings
from fedtune.runs.choice import TOP
from fedtune.runs.reading import commits_of


@dataclass(frozen=True)
class Provenance:
    """Where a run's numbers come from: rows of name and value, and the scenario's fields."""

    rows: list[tuple[str, str]]
    scenario: list[tuple[str, Any]]


def of(r: dict[str, Any], f: Findings | None = None) -> Provenance:
    """A run's record of where its numbers come from; f: the findings, if it is a search."""
    hardware, versions = r.get("hardware") or {}, r.get("versions") or {}
    processors = several(hardware["cpus"], "CPU") if "cpus" in hardware else None
    of_system = hardware.get("system"), hardware.get("machine"), processors, hardware.get("instructions")
    machine = [*of_system, *(hardware.get("gpus") or [])]
    entries = {
        "folder": f.name if f else "",
        "command": shlex.join(_typed(r)),
        "started": r.get("started"),
        "time": _times(r),
        "state": r.get("state"),
        "seeds": _seeds(r, f),
        "scored": r.get("scored"),
        "searched with": search_settings(r),
        "pinned": ", ".join(f"{n} = {v}" for n, v in (r.get("pinned") or {}).items()),
        "preset": r.get("preset"),
        "machine": ", ".join(str(part) for part in machine if part),
        "run on": ", ".join(str(r[k]) for k in ("device", "executor") if r.get(k)),
        "program": _program(r.get("program") or {}),
        "own files": ", ".join(f"{o['name']} ({o['sha256'][:10]})" for o in r.get("own") or []),
        "commit": " and ".join(dict.fromkeys(map(_commit, commits_of(r)))),
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items()),
    }
    scenario = r.get("scenario")
    return Provenance(
        [(n, str(v)) for n, v in entries.items() if v not in (None, "")],
        list(scenario.items()) if isinstance(scenario, dict) else [],
    )


def command_again(r: Mapping[str, Any], *words: str) -> str:
    """The command with these words; without the options that they replace (of --set those of the same names).

    Without the folder's name, too: that folder is there by now.
    """
    flags = {word for word in words if word.startswith("--")} - {"--set"} | {"--name"}
    anew = {word.partition("=")[0] for word in words}
    left, rest = [], iter(_typed(r))
    for word in rest:
        if word in flags or word == "--set":
            value = next(rest, "")
            left += [word, value] * (word == "--set" and value.partition("=")[0] not in anew)
        elif word.partition("=")[0] not in flags:
            left.append(word)
    return shlex.join([*left, *words])


def _typed(r: Mapping[str, Any]) -> list[str]:
    """The words of a study's command, in the one spelling that pages have: `fedtune search` for `fedtune.search`."""
    words = [str(word) for word in r.get("command") or []]
    if words[:2] == ["python", "-m"] and words[2:3] in (["fedtune"], ["fedtune.search"]):
        words[:3] = words[2].split(".")
    return words


def _program(program: dict[str, Any]) -> str:
    if not program:
        return ""
    command = program.get("command")
    words = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    commit = f", commit {_commit(program['commit'])}" if program.get("commit") else ""
    return f"{words}, in {program.get('folder')}{commit}"


def _times(r: dict[str, Any]) -> str:
    # a killed driver could not record its working time
    named = {"search_seconds": "the search", "seconds": "in total at least" if r.get("resumed") else "in all"}
    return ", ".join(f"{what} {r[k]:.0f} s" for k, what in named.items() if isinstance(r.get(k), int | float))


def _seeds(r: dict[str, Any], f: Findings | None) -> str:
    first, count = r.get("seed"), r.get("seeds_per_trial") or 1
    if first is None:
        return ""
    if not r.get("repeatable", True):
        return "none: the program has no seed"
    used = f"{first}" if count == 1 else f"{first} to {first + count - 1}, each trial on all"
    if (more := (r.get("choose_seeds") or 1) - 1) > 0:
        end = first + count + more - 1
        used += f"; the best {TOP} also on {first + count}" + (f" to {end}" if more > 1 else "")
    if f is None:
        block = count + more + int(r.get("seeds") or 0)
        others = f"; each further search on the next {block}" if int(r.get("searches") or 1) > 1 else ""
        return f"{'the first search' if others else 'searches'} on {used}; {r.get('seeds')} fresh ones{others}"
    fresh = f"; check on {', '.join(str(s) for s in sorted(set(f.check.runs['seed'])))}" if f.check else ""
    return f"search on {used}{fresh}"


def _commit(commit: Any) -> str:
    text = str(commit or "")
    return text.removesuffix("+") + " with uncommitted changes" if text.endswith("+") else text
