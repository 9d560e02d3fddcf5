"""A Flower app as a program: `flower = "APPDIR"` in a program file, or APPDIR in place of an algorithm.

Its run config is the space, its rounds are the run config's `num-server-rounds`, and every round's metrics come from
Flower's own results.  `flower_child.py` runs it, in the interpreter that has Flower.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from fedtune.core.errors import UserError, shown, unknown
from fedtune.programs import command as commands
from fedtune.programs import flower_child, metric
from fedtune.programs.entries import Count, Flag, Number, Seconds, Source, Text, refused

SIDES = {  # who has measured a metric, with the words for it
    "client": "what clients evaluate on",
    "server": "what the server evaluates on",
    "train": "the rows that clients train on",
}
DIRECTIONS = {"loss": "min", "accuracy": "max", "acc": "max"}  # by the last word of a metric's name
SEEDS = ("seed", "random-seed", "random_seed")  # run-config keys
CHECKED = 300.0  # seconds in which the app must be imported
CHILD = flower_child.__file__
# keys of a program file that are kept
KEPT = ("name", "rounds", "metrics", "space", "defaults", "stall", "longest_round", "isolate", "gpu")
WHOLE = re.compile(r"\s*[+-]?\d+\s*\.\.\s*[+-]?\d+(\s+log)?\s*")


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class _Entries:
    """What a program file says of a Flower app."""

    flower: Text
    python: Text | None = None
    rounds_key: Text = "num-server-rounds"
    seed_key: Text | None = None
    clients: Count | None = None
    client_cpus: Seconds | None = None
    client_gpus: Annotated[Number, Field(ge=0)] | None = None
    federation: Text | None = None
    tolerate_failed_clients: Flag = False


KEYS = tuple(f.name for f in fields(_Entries))


def entries(raw: Mapping[str, Any], source: Source, base: Path) -> tuple[dict[str, Any], list[str]]:
    """The entries of a program file in place of those that describe a Flower app, and notes for the user.

    UserError in one line for what cannot be.  The app is imported once.
    """
    if strange := [name for name in raw if name not in (*KEYS, *KEPT)]:
        raise source.error(strange[0], unknown("key", strange[0], (*KEYS, *KEPT)))
    of_app = {name: value for name, value in raw.items() if name in KEYS}
    given: _Entries = source.checked(TypeAdapter(_Entries), of_app, lambda: KEYS)
    app = _app(given.flower, source, base)
    interpreter = _interpreter(app, given.python, base)
    options = _told(app.options, given.federation)
    of_client = (given.client_cpus, given.client_gpus)
    count, backend = _told(flower_child.simulation, options, given.clients, None, *of_client)
    seeds = _seed_keys(app, given.seed_key)
    taken = (given.rounds_key, *seeds)
    own = {key: value for key, value in app.config.items() if key not in taken and _is_free(key)}
    searched = _of_keys(app, "space", raw, source, taken, _words)
    fixed = _of_keys(app, "defaults", raw, source, taken, _of_type)
    hyper = own | fixed
    command = [
        *(interpreter, CHILD, str(app.folder), "--seed", "{seed}", "--clients", str(count)),
        *_resources(backend["client_resources"]),
        *(["--tolerate-failed-clients"] if given.tolerate_failed_clients else []),
        *("--set", f"{given.rounds_key}={{rounds}}"),
        *(word for key in seeds for word in ("--set", f"{key}={{seed}}")),
        *(word for key in hyper for word in ("--set", f"{key}={{{key}}}")),
    ]
    defaults = {key: value for key, value in hyper.items() if key not in searched or _lies_in(value, searched[key])}
    made: dict[str, Any] = {
        "name": _name(app),
        "command": command,
        "folder": str(app.folder),
        "rounds": _rounds(app, given.rounds_key),
        "seed": "{seed}",
        "space": searched,
        "defaults": defaults,
        "environment": flower_child.ENVIRONMENT,
    }
    made |= {name: value for name, value in raw.items() if name in ("name", "rounds") or name not in (*KEYS, *made)}
    outside = [key for key in searched if key not in defaults]
    notes = [f"{key} is {hyper[key]!r} in the app, outside of what is searched" for key in outside]
    notes += [f"{key} of the run config is the seed of each trial" for key in seeds]
    notes.append(_check(str(app.folder), interpreter, count, **backend["client_resources"]))
    if "metrics" in raw:
        metrics = source.table("metrics", raw["metrics"])
        made["metrics"] = {metric_name(name): _metric(name, table, source) for name, table in metrics.items()}
        notes += map(_selects, [*metrics][:1])
    return made, notes


def is_app(program: Any) -> bool:
    """Whether a program is a Flower app."""
    return CHILD in program.command


# the folder


def _told(function: Any, *args: Any) -> Any:
    """What a function of the child's gives; its complaint as a UserError."""
    try:
        return function(*args)
    except flower_child.Wrong as error:
        raise UserError(str(error)) from None


def _app(text: str, source: Source, base: Path) -> flower_child.App:
    folder = base / os.path.expanduser(text)
    if not os.path.isdir(folder):
        raise source.error("flower", refused(text, "the folder of a Flower app", "there is no such folder"))
    return _told(flower_child.App, folder)


def _name(app: flower_child.App) -> str:
    return re.sub(r"[^\w.-]", "-", app.folder.name) or "flower"


def _interpreter(app: flower_child.App, python: str | None, base: Path) -> str:
    """The whole path of the interpreter; links stay, because a virtual environment is known by its link."""
    own = app.folder / ".venv" / "bin" / "python"
    asked = python or (str(own) if own.exists() else "python")
    asked = str(base / asked) if "/" in asked else asked
    found = shutil.which(asked) or (None if python else shutil.which("python3"))
    if not found:
        raise UserError(f"python must be an interpreter that has Flower, but {shown(asked)} is not found")
    return os.path.abspath(found)


@functools.cache
def _check(folder: str, interpreter: str, clients: int, num_cpus: float, num_gpus: float) -> str:
    """Import the app once, before anything starts; what was found, for the user."""
    words = [interpreter, CHILD, folder, "--clients", str(clients), "--check"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=CHECKED, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{folder} must be imported within {CHECKED:g} seconds, but was not") from None
    except OSError as error:
        raise UserError(f"python must be an interpreter that has Flower, but {interpreter}: {error.strerror}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(
            said[-1] if said else f"{interpreter} ended with status {done.returncode} as it imported the app"
        )
    versions = json.loads(done.stdout.splitlines()[-1])
    listed = ", ".join(f"{package} {number}" for package, number in versions.items())
    return f"{clients} clients, each with {num_cpus:g} CPU and {num_gpus:g} GPU; {listed}"


# the run config


def _rounds(app: flower_child.App, key: str) -> int:
    found = app.config.get(key)
    if key not in app.config:
        hint = unknown("run-config key", key, app.config)
        raise UserError(f"{hint}; name the one that means the number of rounds by rounds_key")
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise UserError(f"{key} must be a whole number of rounds in {app.file}, but is {shown(found)}")
    return found


def _seed_keys(app: flower_child.App, key: str | None) -> list[str]:
    """The keys that are given the trial's seed: with a seed of its own an app would repeat itself on fresh seeds."""
    if key is not None and key not in app.config:
        raise unknown("run-config key", key, app.config)
    found = [name for name in app.config if name == key or (key is None and name in SEEDS)]
    for name in found:
        if isinstance(app.config[name], bool) or not isinstance(app.config[name], int):
            raise UserError(
                f"{name} must be a whole number to be a seed, but is {shown(app.config[name])} in {app.file}"
            )
    return found


def _require_key(app: flower_child.App, name: str, taken: Sequence[str]) -> None:
    """taken: the key that means the rounds, and those that are seeds."""
    if name in taken:
        what = "the length of a run (--rounds)" if name == taken[0] else "the seed of each trial (--seed)"
        raise UserError(f"{name} is given {what}; it can be neither searched nor fixed")
    if name not in app.config:
        raise unknown("run-config key", name, app.config, command=f"[tool.flwr.app.config] of {app.file}")
    if not _is_free(name):
        raise UserError(f"{name} is a name that fedtune gives itself; search and fix other keys")


def _of_keys(
    app: flower_child.App, part: str, raw: Mapping[str, Any], source: Source, taken: Sequence[str], typed: Any
) -> dict[str, Any]:
    """What [space] or [defaults] says of run-config keys, in the types that the app declares."""
    found = {}
    for key, value in source.table(part, raw.get(part, {})).items():
        try:
            _require_key(app, key, taken)
            found[key] = typed(app, key, value)
        except UserError as error:
            raise source.error(f"{part}.{key}", error) from None
    return found


def _is_free(key: str) -> bool:
    return bool(re.fullmatch(commands.NAME, key)) and key not in commands.OWN and key not in metric.TAKEN


def _of_type(app: flower_child.App, key: str, value: Any) -> Any:
    """A value of a key, in the type that the app declares by its own."""
    declared = app.config[key]
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(declared, int) and isinstance(value, float) and value.is_integer():
        text = str(int(value))
    return _told(flower_child.typed, key, text, declared)


def _words(app: flower_child.App, key: str, words: Any) -> Any:
    """A range or choices of a key, in its type: a range of a number that is not whole has a point."""
    if isinstance(words, Mapping):
        return {
            part: _words(app, key, value) if part in ("range", "choices") else value for part, value in words.items()
        }
    declared = app.config[key]
    if isinstance(words, list):
        return [_of_type(app, key, value) for value in words]
    number = isinstance(declared, int | float) and not isinstance(declared, bool)
    if not isinstance(words, str) or ".." not in words:
        return words
    if not number:
        raise UserError(f"{key} needs a list of choices, as it is {shown(declared)} in {app.file}; got {shown(words)}")
    if isinstance(declared, float) and WHOLE.fullmatch(words):
        return re.sub(r"(\d+)", r"\1.0", words)
    if isinstance(declared, int) and not WHOLE.fullmatch(words):
        raise UserError(
            f"{key} must be whole, as {declared} in {app.file}, but got the range {shown(words)}; write it with a "
            f"point there if it may have one: {key} = {float(declared)}"
        )
    return words


def _lies_in(value: Any, words: Any) -> bool:
    if isinstance(words, Mapping):
        words = words.get("range", words.get("choices"))
    if isinstance(words, list):
        return value in words
    ends = words.replace("log", "").split("..") if isinstance(words, str) else []
    try:
        low, high = map(float, ends)
    except ValueError:
        return True  # the program file's own check tells what is wrong
    return not isinstance(value, str) and low <= value <= high


# metrics and what a client uses


def metric_name(name: str) -> str:
    """The column of a metric; UserError unless it is `client:NAME`, `server:NAME` or `train:NAME`."""
    return flower_child.column(*_parts(name))


def _parts(name: str) -> tuple[str, str]:
    found = re.fullmatch(rf"({'|'.join(SIDES)})[:_](.+)", name)
    if not found:
        raise UserError(
            "a metric of a Flower app is client:NAME, server:NAME or train:NAME, for example client:accuracy, but got "
            f"{shown(name)}"
        )
    return found[1], found[2]


def _metric(name: str, table: Any, source: Source) -> dict[str, Any]:
    side, own = _parts(name)
    for key in source.table(f"metrics.{name}", table):
        if key not in ("mode", "split"):
            raise source.error(f"metrics.{name}.{key}", unknown(f"key of metrics.{name}", key, ("mode", "split")))
    mode = DIRECTIONS.get(re.split(r"[\W_]", own)[-1].lower(), "")
    return ({"split": "train"} if side == "train" else {}) | ({"mode": mode} if mode else {}) | table


def _selects(name: str) -> str:
    return (
        f"{name} selects: it is measured on {SIDES[_parts(name)[0]]}, which the app chooses; fedtune cannot know if "
        "these are test rows, so measure the winner on rows that nothing else has seen"
    )


def _resources(client: Mapping[str, Any]) -> list[str]:
    for name, number in client.items():
        if name in ("num_cpus", "num_gpus") and not (isinstance(number, int | float) and 0 <= number < math.inf):
            raise UserError(f"a client's {name} must be a number, but is {shown(number)}")
    return ["--client-cpus", f"{client['num_cpus']:g}", "--client-gpus", f"{client['num_gpus']:g}"]
