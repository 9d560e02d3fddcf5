"""Configuration files that are written for each trial: YAML, JSON or TOML, with its values in a base of the user's.

[write."{folder}/config.yaml"] with from = "base.yaml", and "optimizer.lr" = "{lr}" for each value.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ValidationInfo

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.terminal import one_line
from fedtune.programs import command
from fedtune.programs.entries import Text, below, refused
from fedtune.programs.flower_child import flatten

KINDS = (".yaml", ".yml", ".json", ".toml")


class ConfigFile(NamedTuple):
    """What is written to a file."""

    base: str  # the file that it is written from; "" if it has no other entries
    entries: dict[str, Any]  # the others, by dotted key

    def texts(self) -> list[str]:
        """What names in braces may stand in."""
        found: list[str] = []
        _mapped([*self.entries.values()], found.append)
        return found

    def content(self, path: str, values: Mapping[str, Any]) -> str:
        """The file's text with a trial's values, each in its type; UserError for a key that its base lacks."""
        made = _read(Path(self.base)) if self.base else {}
        for key, value in self.entries.items():
            _put(made, key.split("."), _mapped(value, lambda text: _filled(text, values)), self.base)
        if path.endswith(".json"):
            return json.dumps(made, indent=2, default=str)
        if path.endswith(".toml"):
            return "".join(f"{_toml(name)} = {_toml(value)}\n" for name, value in made.items() if value is not None)
        import yaml

        return yaml.safe_dump(made, sort_keys=False, allow_unicode=True)


def _declared(table: Any, info: ValidationInfo) -> ConfigFile:
    if not isinstance(table, Mapping):
        raise refused(table, "a table", 'for example {from = "base.yaml", "optimizer.lr" = "{lr}"}')
    base = str(below(str(table["from"]), info)) if "from" in table else ""
    found = ConfigFile(base, flatten({key: value for key, value in table.items() if key != "from"}))
    made = _read(Path(base)) if base else {}
    for key, value in found.entries.items():
        _put(made, key.split("."), value, base)
    return found


Files = dict[Text, Annotated[ConfigFile, BeforeValidator(_declared)]]


def write(files: Mapping[str, ConfigFile], place: Path, values: Mapping[str, Any]) -> None:
    """Write a trial's files.  place: the folder that it runs in."""
    for path, file in files.items():
        target = place / command.filled(path, values)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.content(path, values))


def _read(path: Path) -> dict[str, Any]:
    """The content of a base; UserError if it is no mapping."""
    import yaml

    try:
        kinds = {".json": json.loads, ".toml": tomllib.loads}
        found = kinds.get(path.suffix, yaml.safe_load)(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"from must be a file of YAML, JSON or TOML, but {path}: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise UserError(f"from must be a file of keys and values, but {path} is none")
    return found


def _put(table: Any, keys: list[str], value: Any, base: str) -> None:
    """Set a value in nested tables and lists.  base: the file that must have these keys; "" if there is none."""
    key: Any = keys[0]
    if isinstance(table, list):
        known: Any = {str(i): i for i in range(len(table))}
    else:
        known = {str(name): name for name in table} if isinstance(table, dict) else {}
    if base and key not in known:
        raise UserError(f"{unknown(f'key of {base}', key, known)}; if the program reads it, write it there too")
    if key not in known and not isinstance(table, dict):
        raise UserError(f"{key!r} must be in a table, but is in {shown(table)}")
    key = known.get(key, key)
    if keys[1:]:
        _put(table[key] if key in known.values() else table.setdefault(key, {}), keys[1:], value, base)
    else:
        table[key] = value


def _mapped(value: Any, function: Callable[[str], Any]) -> Any:
    if isinstance(value, list):
        return [_mapped(one, function) for one in value]
    return function(value) if isinstance(value, str) else value


def _filled(text: str, values: Mapping[str, Any]) -> Any:
    """A text of the program file, in which a name alone stands for a trial's value in its type."""
    names = command.names([text])
    return values[names[0]] if names and text == f"{{{names[0]}}}" else command.filled(text, values)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        there = {str(name): inner for name, inner in value.items() if inner is not None}  # TOML has no null
        return f"{{ {', '.join(f'{_toml(name)} = {_toml(inner)}' for name, inner in there.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else command.text(value)
    return text.replace("\x7f", "\\u007f")
