"""A Flower app as a program: `--flower APPDIR` needs no edit of the app.

Its run config is the space, its rounds are the run config's `num-server-rounds`, and every round's metrics come from
Flower's own results.  `flower_child.py` runs it, in the interpreter that has Flower.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, shown, unknown
from fedtune.programs import flower_child, metric, program_file
from fedtune.programs.program_file import Program

SIDES = {  # who has measured a metric, with the words for it
    "client": "what clients evaluate on",
    "server": "what the server evaluates on",
    "train": "the rows that clients train on",
}
DIRECTIONS = {"loss": "min", "accuracy": "max", "acc": "max"}  # by the last word of a metric's name
SEEDS = ("seed", "random-seed", "random_seed")  # run-config keys
CHECKED = 300.0  # seconds in which the app must be imported
CHILD = flower_child.__file__
WHOLE = re.compile(r"\s*[+-]?\d+\s*\.\.\s*[+-]?\d+(\s+log)?\s*")


def of_app(
    folder: str | Path,
    metrics: Sequence[str],
    python: str | None = None,
    *,
    space: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    modes: Mapping[str, str] | None = None,
    rounds: int | None = None,
    rounds_key: str = "num-server-rounds",
    seed_key: str | None = None,
    clients: int | None = None,
    client_cpus: float | None = None,
    client_gpus: float | None = None,
    federation: str | None = None,
    tolerate_failed_clients: bool = False,
    **options: Any,
) -> Program:
    """The program that runs a Flower app; UserError in one line for what cannot be.  The app is imported once.

    folder          the app's, with [tool.flwr.app] in its pyproject.toml
    metrics         `client:NAME`, `server:NAME` or `train:NAME`, in rows client_NAME and so on; the first is optimised
    python          the interpreter that has Flower; default: the app's .venv, else python on the PATH
    space           run-config keys with ranges or choices in words, as in a program file
    fixed           run-config keys with values that replace the app's own
    modes           metrics that are neither a loss nor an accuracy with their direction, max or min
    rounds          default: the app's own
    rounds_key      the run-config key that means the number of rounds
    seed_key        the run-config key that is given the trial's seed; default: `seed` or `random-seed`, if it has one
    clients         default, as for what clients use: the federation's options
    options         of a program file: stall, isolate and so on
    """
    space, fixed = space or {}, fixed or {}
    app = _app(folder)
    interpreter = _interpreter(app, python)
    own_rounds = _rounds(app, rounds_key)
    count, backend = _told(
        flower_child.simulation, _told(app.options, federation), clients, None, client_cpus, client_gpus
    )
    seeds = _seed_keys(app, seed_key)
    for name in (*space, *fixed):
        _require_key(app, name, rounds_key, seeds)
    values = {key: value for key, value in (app.config | dict(fixed)).items() if key not in (rounds_key, *seeds)}
    hyper = {key: _of_type(app, key, value) for key, value in values.items() if _is_free(key)}
    searched = {key: _words(app, key, words) for key, words in space.items()}
    defaults = _inside(searched, hyper)
    made = Program.from_command(
        [
            *(interpreter, CHILD, str(app.folder), "--seed", "{seed}", "--clients", str(count)),
            *_resources(backend["client_resources"]),
            *(["--tolerate-failed-clients"] if tolerate_failed_clients else []),
            *("--set", f"{rounds_key}={{rounds}}"),
            *(word for key in seeds for word in ("--set", f"{key}={{seed}}")),
            *(word for key in hyper for word in ("--set", f"{key}={{{key}}}")),
        ],
        {metric_name(name): _metric(name, modes or {}) for name in metrics},
        searched,
        own_rounds if rounds is None else rounds,
        "--flower",
        name=_name(app),
        folder=str(app.folder),
        seed="{seed}",
        defaults=defaults,
        environment=flower_child.ENVIRONMENT,
        **options,
    )
    notes = [_check(app, interpreter, count, backend["client_resources"]), *map(_selects, metrics[:1])]
    moved = [
        f"{key} is {hyper[key]!r} in the app, outside of what is searched; {made.hyper[key].default!r} is taken instead"
        for key in searched
        if key not in defaults
    ]
    seeded = [f"{key} of the run config is the seed of each trial" for key in seeds]
    return replace(made, notes=(*moved, *seeded, *notes))


# the folder


def _told(function: Any, *args: Any) -> Any:
    """What a function of the child's gives; its complaint as a UserError."""
    try:
        return function(*args)
    except flower_child.Wrong as error:
        raise UserError(str(error)) from None


def _app(folder: str | Path) -> flower_child.App:
    if not Path(folder).is_dir():
        raise UserError(f"--flower needs the folder of a Flower app, but {shown(str(folder))} is none")
    return _told(flower_child.App, folder)


def _name(app: flower_child.App) -> str:
    return re.sub(r"[^\w.-]", "-", app.folder.name) or "flower"


def _interpreter(app: flower_child.App, python: str | None) -> str:
    """The whole path of the interpreter; links stay, because a virtual environment is known by its link."""
    own = app.folder / ".venv" / "bin" / "python"
    asked = python or (str(own) if own.exists() else "python")
    found = shutil.which(asked) or (None if python else shutil.which("python3"))
    if not found:
        raise UserError(f"--python must be an interpreter that has Flower, but {shown(asked)} is not found")
    return os.path.abspath(found)


def _check(app: flower_child.App, interpreter: str, clients: int, client: Mapping[str, Any]) -> str:
    """Import the app once, before anything starts; what was found, for the user."""
    words = [interpreter, CHILD, str(app.folder), "--clients", str(clients), "--check"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=CHECKED, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{app.folder} must be imported within {CHECKED:g} seconds, but was not") from None
    except OSError as error:
        raise UserError(
            f"--python must be an interpreter that has Flower, but {interpreter}: {error.strerror}"
        ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(
            said[-1] if said else f"{interpreter} ended with status {done.returncode} as it imported the app"
        )
    versions = json.loads(done.stdout.splitlines()[-1])
    listed = ", ".join(f"{package} {number}" for package, number in versions.items())
    return f"{clients} clients, each with {client['num_cpus']:g} CPU and {client['num_gpus']:g} GPU; {listed}"


# the run config


def _rounds(app: flower_child.App, key: str) -> int:
    found = app.config.get(key)
    if key not in app.config:
        hint = unknown("run-config key", key, app.config)
        raise UserError(f"{hint}; name the one that means the number of rounds with --rounds-key")
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


def _require_key(app: flower_child.App, name: str, rounds_key: str, seeds: Sequence[str]) -> None:
    if name == rounds_key:
        raise UserError(f"{name} is the length of a run, which --rounds gives; it can be neither searched nor fixed")
    if name in seeds:
        raise UserError(f"{name} is given the seed of each trial (--seed); it can be neither searched nor fixed")
    if name not in app.config:
        raise unknown("run-config key", name, app.config, where=f"[tool.flwr.app.config] of {app.file}")
    if not _is_free(name):
        raise UserError(f"{name} is a name that fedtune gives itself; search and fix other keys")


def _is_free(key: str) -> bool:
    return bool(re.fullmatch(program_file.NAME, key)) and key not in program_file.OWN and key not in metric.TAKEN


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


def _inside(space: Mapping[str, Any], hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The app's own values, less those that lie outside the space."""
    return {key: value for key, value in hyper.items() if key not in space or _lies_in(value, space[key])}


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


def _metric(name: str, modes: Mapping[str, str]) -> dict[str, str]:
    side, own = _parts(name)
    said = {"split": "train"} if side == "train" else {}
    mode = modes.get(name) or DIRECTIONS.get(re.split(r"[\W_]", own)[-1].lower(), "")
    return said | ({"mode": mode} if mode else {})


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
