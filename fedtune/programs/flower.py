"""A Flower app as a program: `flower = "APPDIR"` in a program file, or APPDIR in place of an algorithm.

Its run config is the space, its rounds are the run config's `num-server-rounds`, and every round's metrics come from
Flower's own results.  `flower_child.py` runs it, in the interpreter that has Flower.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config

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
Named = Annotated[str, Field(pattern=r".+:.+")]


@dataclass(frozen=True)
class _Components:
    serverapp: Named
    clientapp: Named


@dataclass(frozen=True)
class _Simulation:
    """The options of a federation that matter here; names in them may have dashes."""

    num_supernodes: Annotated[int, Strict(), Field(ge=1)] | None = None
    backend: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _App:
    """What an app's pyproject.toml says below [tool.flwr.app]."""

    components: _Components
    config: dict[str, Any] = field(default_factory=dict)


def entries(raw: Mapping[str, Any], source: Source, base: Path) -> tuple[dict[str, Any], list[str]]:
    """The entries of a program file in place of those that describe a Flower app, and notes for the user.

    UserError in one line for what cannot be.  The app is imported once.
    """
    if strange := [name for name in raw if name not in (*KEYS, *KEPT)]:
        raise source.error(strange[0], unknown("key", strange[0], (*KEYS, *KEPT)))
    of_app = {name: value for name, value in raw.items() if name in KEYS}
    given: _Entries = source.checked(TypeAdapter(_Entries), of_app, lambda: KEYS)
    folder = (base / os.path.expanduser(given.flower)).resolve()
    if not folder.is_dir():
        raise source.error("flower", refused(given.flower, "the folder of a Flower app", "there is no such folder"))
    app, federations = _read(folder)
    interpreter = _interpreter(folder, given.python, base)
    runs = _simulation(given, federations) | {"folder": str(folder), **asdict(app.components)}
    # with a seed of its own an app would repeat itself on fresh seeds
    seeds = [given.seed_key] if given.seed_key else [key for key in SEEDS if key in app.config]
    for key in seeds:
        _whole(app, key, "a seed (seed_key)")
    taken = (given.rounds_key, *seeds)
    own = {key: value for key, value in app.config.items() if key not in taken and _is_free(key)}
    searched = _of_keys(app, "space", raw, source, taken, _words)
    fixed = _of_keys(app, "defaults", raw, source, taken, _of_type)
    hyper = own | fixed
    values = {key: _escaped(value) for key, value in app.config.items()} | {key: f"{{{key}}}" for key in hyper}
    values |= {given.rounds_key: "{rounds}", **dict.fromkeys(seeds, "{seed}")}
    defaults = {key: value for key, value in hyper.items() if key not in searched or _lies_in(value, searched[key])}
    made: dict[str, Any] = {
        "name": re.sub(r"[^\w.-]", "-", folder.name) or "flower",
        "command": [interpreter, CHILD, "{folder}/app.json"],
        "write": {"{folder}/app.json": runs | {"seed": "{seed}", "config": values}},
        "folder": str(folder),
        "rounds": _whole(app, given.rounds_key, "the number of rounds (rounds_key)"),
        "seed": "{seed}",
        "space": searched,
        "defaults": defaults,
        "environment": flower_child.ENVIRONMENT,
    }
    made |= {name: value for name, value in raw.items() if name in ("name", "rounds") or name not in (*KEYS, *made)}
    outside = [key for key in searched if key not in defaults]
    notes = [f"{key} is {hyper[key]!r} in the app, outside of what is searched" for key in outside]
    notes += [f"{key} of the run config is the seed of each trial" for key in seeds]
    notes.append(_check(interpreter, json.dumps(runs | {"seed": 0, "config": {}})))
    if "metrics" in raw:
        metrics = source.table("metrics", raw["metrics"])
        made["metrics"] = {
            flower_child.column(*_parts(name)): _metric(name, table, source) for name, table in metrics.items()
        }
        notes += map(_selects, [*metrics][:1])
    return made, notes


def is_app(program: Any) -> bool:
    """Whether a program is a Flower app."""
    return CHILD in program.command


def flwr_command(program: Any, values: Mapping[str, Any]) -> str:
    """The command by which Flower itself runs an app with these values."""
    ((path, file),) = program.write.items()
    config = flower_child.flatten(json.loads(file.content(path, values))["config"])
    given = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    return shlex.join(["flwr", "run", program.folder, "--run-config", given])


# the app


def _read(folder: Path) -> tuple[_App, dict[str, Any]]:
    """What an app's pyproject.toml says of it, and the federations: its own, else those of Flower's configuration."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise UserError(f"a Flower app is a folder with a pyproject.toml, but {file} is not there")
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("flwr", {})
        if not told.get("app"):
            raise UserError(f"{file} has no [tool.flwr.app], so {folder.name} is no Flower app")
        app = TypeAdapter(_App).validate_python(told["app"])
        federations = told.get("federations")
        config = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
        if not federations and config.is_file():
            federations = tomllib.loads(config.read_text(encoding="utf-8")).get("superlink")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["tool.flwr.app", *map(str, first["loc"])])
        raise UserError(f"{file}: {where} is wrong: {first['msg']}, but got {shown(first['input'])}") from None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return replace(app, config=flower_child.flatten(app.config)), federations or {}


def _simulation(given: _Entries, federations: Mapping[str, Any]) -> dict[str, Any]:
    """How many clients there are and what each uses: a federation's options, with what the file says over them."""
    named = given.federation or federations.get("default")
    known = [name for name, value in federations.items() if isinstance(value, dict)]
    if named is not None and named not in known:
        raise UserError(f"the app has no federation {named!r}; it has {', '.join(known) or 'none'}")
    try:
        options = TypeAdapter(_Simulation).validate_python(
            _underscored(federations.get(str(named), {}).get("options", {}))
        )
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"])).replace("_", "-")
        raise UserError(
            f"federation {named}: options.{option}: {first['msg']}, but got {shown(first['input'])}"
        ) from None
    if (count := given.clients or options.num_supernodes) is None:
        raise UserError("the number of clients must be said, by clients = N or by options.num-supernodes")
    client = {"num_cpus": 1, "num_gpus": 0.0, **options.backend.get("client_resources", {})}
    client |= {} if given.client_cpus is None else {"num_cpus": given.client_cpus}
    client |= {} if given.client_gpus is None else {"num_gpus": given.client_gpus}
    start = options.backend.get("init_args", {})
    tolerant = given.tolerate_failed_clients
    return {"clients": count, "client_resources": client, "init_args": start, "tolerant": tolerant}


def _underscored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.replace("-", "_"): _underscored(inner) for name, inner in value.items()}
    return value


def _escaped(value: Any) -> Any:
    return value.replace("{", "{{").replace("}", "}}") if isinstance(value, str) else value


def _interpreter(folder: Path, python: str | None, base: Path) -> str:
    """The whole path of the interpreter; links stay, because a virtual environment is known by its link."""
    own = folder / ".venv" / "bin" / "python"
    asked = python or (str(own) if own.exists() else "python")
    asked = str(base / asked) if "/" in asked else asked
    found = shutil.which(asked) or (None if python else shutil.which("python3"))
    if not found:
        raise UserError(f"python must be an interpreter that has Flower, but {shown(asked)} is not found")
    return os.path.abspath(found)


@functools.cache
def _check(interpreter: str, app: str) -> str:
    """Import the app once, before anything starts; what was found, for the user."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(app)
        file.flush()
        words = [interpreter, CHILD, file.name, "--check"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=CHECKED, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"the app must be imported within {CHECKED:g} seconds, but was not") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(said[-1] if said else f"{interpreter} ended with status {done.returncode}")
    versions, runs = json.loads(done.stdout.splitlines()[-1]), json.loads(app)
    listed = ", ".join(f"{package} {number}" for package, number in versions.items())
    client = runs["client_resources"]
    return f"{runs['clients']} clients, each with {client['num_cpus']:g} CPU and {client['num_gpus']:g} GPU; {listed}"


# the run config


def _whole(app: _App, key: str, what: str) -> int:
    """The whole number that a key of the run config has.  what: what it means."""
    if key not in app.config:
        raise UserError(f"{unknown('run-config key', key, app.config)}; name the one that is {what}")
    value = app.config[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{key} must be a whole number to be {what}, but is {shown(value)}")
    return value


def _of_keys(
    app: _App, part: str, raw: Mapping[str, Any], source: Source, taken: Sequence[str], typed: Any
) -> dict[str, Any]:
    """What [space] or [defaults] says of run-config keys, in the types that the app declares.

    taken: the key that means the rounds, and those that are seeds
    """
    found = {}
    for key, value in source.table(part, raw.get(part, {})).items():
        try:
            if key in taken:
                what = "the length of a run (--rounds)" if key == taken[0] else "the seed of each trial (--seed)"
                raise UserError(f"{key} is given {what}; it can be neither searched nor fixed")
            if key not in app.config:
                raise unknown("run-config key", key, app.config)
            if not _is_free(key):
                raise UserError(f"{key} is a name that fedtune gives itself; search and fix other keys")
            found[key] = typed(app, key, value)
        except UserError as error:
            raise source.error(f"{part}.{key}", error) from None
    return found


def _is_free(key: str) -> bool:
    return bool(re.fullmatch(commands.NAME, key)) and key not in commands.OWN and key not in metric.TAKEN


def _of_type(app: _App, key: str, value: Any) -> Any:
    """A value of a key, in the type that the app declares by its own."""
    declared, kind = app.config[key], type(app.config[key])
    try:
        found = {"true": True, "false": False}[str(value).lower()] if kind is bool else kind(value)
        if isinstance(value, bool) and kind in (int, float) or kind is int and found != float(value):
            raise ValueError
    except (KeyError, ValueError, TypeError):
        words = f"{key} must be of type {kind.__name__}, as {declared!r} in pyproject.toml, but got {value!r}"
        raise UserError(words) from None
    return found


def _words(app: _App, key: str, words: Any) -> Any:
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
        raise UserError(f"{key} needs a list of choices, as it is {shown(declared)}; got {shown(words)}")
    if isinstance(declared, float) and WHOLE.fullmatch(words):
        return re.sub(r"(\d+)", r"\1.0", words)
    if isinstance(declared, int) and not WHOLE.fullmatch(words):
        raise UserError(
            f"{key} must be whole, as {declared}, but got the range {shown(words)}; write it with a "
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


def _parts(name: str) -> tuple[str, str]:
    """Who measures a metric, and its name there; UserError unless it is client:NAME, server:NAME or train:NAME."""
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
