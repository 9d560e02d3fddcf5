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
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config

from fedtune.core.errors import UserError, require_known, shown, unknown
from fedtune.core.hyper import Hyperparameter, Range
from fedtune.programs import command as commands
from fedtune.programs import flower_child, metric
from fedtune.programs.entries import Count, Flag, Number, Seconds, Text, at, checked, of_key, refused, table

# who has measured a metric, with the words for it
SIDES = {"client": "what clients evaluate on", "server": "what the server evaluates on"}
SIDES |= {"train": "the rows that clients train on"}
DIRECTIONS = {"loss": "min", "accuracy": "max", "acc": "max"}  # by the last word of a metric's name
SEEDS = ("seed", "random-seed", "random_seed")  # run-config keys
CHILD = flower_child.__file__
# keys of a program file that are kept
KEPT = ("name", "rounds", "metrics", "space", "defaults", "stall", "longest_round", "isolate", "gpu")


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class _Entries:
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
class _App:
    components: _Components
    config: dict[str, Any] = field(default_factory=dict)


def entries(raw: Mapping[str, Any], base: Path) -> tuple[dict[str, Any], list[str]]:
    """The entries of a program file in place of those that describe a Flower app, and notes for the user.

    UserError in one line for what cannot be.  The app is imported once.
    """
    require_known("key", raw, (*KEYS, *KEPT))
    given: _Entries = checked(_Entries, {name: value for name, value in raw.items() if name in KEYS}, {"": KEYS})
    folder = (base / os.path.expanduser(given.flower)).resolve()
    app, federations = _read(folder)
    interpreter = _interpreter(folder, given.python, base)
    runs = _simulation(given, federations) | {"folder": str(folder), **asdict(app.components)}
    # with a seed of its own an app would repeat itself on fresh seeds
    seeds = [given.seed_key] if given.seed_key else [key for key in SEEDS if key in app.config]
    for key in seeds:
        _whole(app, key, "a seed (seed_key)")
    taken = (given.rounds_key, *seeds)
    own = {key: value for key, value in app.config.items() if key not in taken and _is_free(key)}
    searched = _of_keys(app, "space", raw, taken, _words)
    hyper = own | _of_keys(app, "defaults", raw, taken, _of_type)
    escaped = {k: v.replace("{", "{{").replace("}", "}}") for k, v in app.config.items() if isinstance(v, str)}
    values = app.config | escaped | {key: f"{{{key}}}" for key in hyper}
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
        metrics = table("metrics", raw["metrics"])
        made["metrics"] = {flower_child.column(*_parts(name)): _metric(name, of) for name, of in metrics.items()}
        notes += [
            f"{name} selects: it is measured on {SIDES[_parts(name)[0]]}, which the app chooses; fedtune cannot know "
            "if these are test rows, so measure the winner on rows that nothing else has seen"
            for name in [*metrics][:1]
        ]
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
    told = _toml(file, "tool", "flwr")
    with at(str(file)):
        app: _App = checked(_App, table("tool.flwr.app", told.get("app")), {})
    federations = told.get("federations")
    config = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    if not federations and config.is_file():
        federations = _toml(config, "superlink")
    return replace(app, config=flower_child.flatten(app.config)), federations or {}


def _toml(file: Path, *keys: str) -> dict[str, Any]:
    """A table of a TOML file, below these keys; empty if it has none."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
        for key in keys:
            found = dict(table(key, found.get(key, {})))
    except (OSError, ValueError) as error:
        rule = "flower must be a folder with the pyproject.toml of an app"
        raise UserError(f"{rule}, but {file} cannot be read: {error}") from None
    return found


def _simulation(given: _Entries, federations: Mapping[str, Any]) -> dict[str, Any]:
    """How many clients there are and what each uses: a federation's options, with what the file says over them."""
    named = given.federation or federations.get("default")
    known = [name for name, value in federations.items() if isinstance(value, dict)]
    if named is not None and named not in known:
        raise UserError(f"the app has no federation {named!r}; it has {', '.join(known) or 'none'}")
    options = _underscored(federations[named].get("options", {}) if named else {})
    count, backend = given.clients or options.get("num_supernodes"), options.get("backend", {})
    if not isinstance(count, int) or count < 1:
        raise UserError(f"clients, else num-supernodes of the federation, must be 1 or more, but is {count}")
    own = {"num_cpus": given.client_cpus, "num_gpus": given.client_gpus}
    client = {"num_cpus": 1, "num_gpus": 0.0, **backend.get("client_resources", {})}
    client |= {name: value for name, value in own.items() if value is not None}
    start, tolerant = backend.get("init_args", {}), given.tolerate_failed_clients
    return {"clients": count, "client_resources": client, "init_args": start, "tolerant": tolerant}


def _underscored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.replace("-", "_"): _underscored(inner) for name, inner in value.items()}
    return value


def _interpreter(folder: Path, python: str | None, base: Path) -> str:
    """The whole path of the interpreter; links stay, because a virtual environment is known by its link."""
    own = folder / ".venv" / "bin" / "python"
    asked = python or (str(own) if own.exists() else "python")
    found = shutil.which(str(base / asked) if "/" in asked else asked) or (None if python else shutil.which("python3"))
    if not found:
        raise UserError(f"python must be an interpreter that has Flower, but {shown(asked)} is not found")
    return os.path.abspath(found)


@functools.cache
def _check(interpreter: str, app: str) -> str:
    """Import the app once, before anything starts; what was found, for the user."""
    words = [interpreter, CHILD, "/dev/stdin", "--check"]
    done = subprocess.run(words, input=app, capture_output=True, text=True, errors="replace")
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
    app: _App, part: str, raw: Mapping[str, Any], taken: Sequence[str], typed: Callable[[str, Any, Any], Any]
) -> dict[str, Any]:
    """What [space] or [defaults] says of run-config keys, in the types that the app declares.

    taken: the key that means the rounds, and those that are seeds
    """
    found = {}
    for key, value in table(part, raw.get(part, {})).items():
        if key not in app.config:
            raise of_key(part, unknown("run-config key", key, app.config))
        if key in taken or not _is_free(key):
            raise of_key(f"{part}.{key}", "must be left out: fedtune gives it itself, as by --rounds and --seed")
        with at(part):
            found[key] = typed(key, app.config[key], value)
    return found


def _is_free(key: str) -> bool:
    return bool(re.fullmatch(commands.NAME, key)) and key not in commands.OWN and key not in metric.TAKEN


def _of_type(key: str, declared: Any, value: Any) -> Any:
    if isinstance(declared, str):
        return commands.text(value)
    choices = (False, True) if isinstance(declared, bool) else ()
    return Hyperparameter(name=key, default=declared, choices=choices).check(value)


def _words(key: str, declared: Any, words: Any) -> Any:
    """A range or choices of a key, in its type: a range of a number that is not whole has a point."""
    if isinstance(words, Mapping):
        return {n: _words(key, declared, v) if n in ("range", "choices") else v for n, v in words.items()}
    if isinstance(words, list):
        return [_of_type(key, declared, value) for value in words]
    found = Range.parse(words) if isinstance(words, str) else None
    if found and isinstance(declared, bool | str):
        raise of_key(key, refused(words, f"a list of choices, as the app's is {shown(declared)}"))
    if found and isinstance(declared, int) and not found.integer:
        raise of_key(key, refused(words, f"of whole numbers, as the app's is {declared}"))
    return found._replace(integer=False).text() if found and isinstance(declared, float) else words


def _lies_in(value: Any, words: Any) -> bool:
    if isinstance(words, Mapping):
        words = words.get("range", words.get("choices"))
    if isinstance(words, list):
        return value in words
    found = Range.parse(words) if isinstance(words, str) else None
    return not found or found.low <= value <= found.high  # where it is none, the program file's own check tells so


# metrics


def _parts(name: str) -> tuple[str, str]:
    """Who measures a metric, and its name there; UserError unless it is client:NAME, server:NAME or train:NAME."""
    found = re.fullmatch(rf"({'|'.join(SIDES)})[:_](.+)", name)
    if not found:
        rule = "client:NAME, server:NAME or train:NAME"
        raise UserError(f"a metric of a Flower app {refused(name, rule, 'for example client:accuracy')}")
    return found[1], found[2]


def _metric(name: str, of: Any) -> dict[str, Any]:
    side, own = _parts(name)
    require_known(f"key of metrics.{name}", table(f"metrics.{name}", of), ("mode", "split", "grows"))
    mode = DIRECTIONS.get(re.split(r"[\W_]", own)[-1].lower(), "")
    return ({"split": "train"} if side == "train" else {}) | ({"mode": mode} if mode else {}) | of
