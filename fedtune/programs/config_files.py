"""Configuration files that are written for each trial: YAML, JSON or TOML, with its values in a base of the user's.

[write."{folder}/config.yaml"] with from = "base.yaml", and "optimizer.lr" = "{lr}" for each value.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ValidationInfo

from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import one_line
from fedtune.programs import command
from fedtune.programs.entries import Text, refused

KINDS = (".yaml", ".yml", ".json", ".toml")


class ConfigFile(NamedTuple):
    """What is written to a file."""

    base: str  # the file that it is written from; "" if it has no other entries
    entries: dict[str, Any]  # the others, by dotted key

    def texts(self) -> list[str]:
        """What names in braces may stand in."""
        return [text for value in self.entries.values() for text in _texts(value)]

    def content(self, path: str, values: Mapping[str, Any]) -> str:
        """The file's text with a trial's values, each in its type."""
        made = copy.deepcopy(_read(Path(self.base))) if self.base else {}
        for key, value in self.entries.items():
            _put(made, key.split("."), _filled(value, values))
        if path.endswith(".json"):
            return json.dumps(made, indent=2)
        if path.endswith(".toml"):
            return "".join(f"{_toml(name)} = {_toml(value)}\n" for name, value in made.items())
        import yaml

        return yaml.safe_dump(made, sort_keys=False, allow_unicode=True)


def _declared(table: Any, info: ValidationInfo) -> ConfigFile:
    if not isinstance(table, Mapping):
        raise refused(table, "a table", 'for example {from = "base.yaml", "optimizer.lr" = "{lr}"}')
    rest = {key: value for key, value in table.items() if key != "from"}
    base = str(info.context / table["from"]) if table.get("from") else ""
    entries = dict(_flat(rest))
    known = dict(_flat(_read(Path(base)), all_of_it=True)) if base else entries
    for key in entries:
        if key not in known:
            raise UserError(f"{unknown(f'key of {base}', key, known)}; if the program reads it, write it there too")
    return ConfigFile(base, entries)


Files = dict[Text, Annotated[ConfigFile, BeforeValidator(_declared)]]


def write(files: Mapping[str, ConfigFile], place: Path, values: Mapping[str, Any]) -> None:
    """Write a trial's files.  place: the folder that it runs in."""
    for path, file in files.items():
        target = place / command.fill([path], values)[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.content(path, values))


def _read(path: Path) -> dict[str, Any]:
    """The content of a base; UserError if it is no mapping."""
    import yaml

    try:
        text = path.read_text()
        kinds = {".json": json.loads, ".toml": tomllib.loads}
        found = kinds.get(path.suffix, yaml.safe_load)(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"from must be a file of YAML, JSON or TOML, but {path}: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise UserError(f"from must be a file of keys and values, but {path} is none")
    return found


def _flat(table: Any, above: str = "", all_of_it: bool = False) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; `all_of_it`: also of tables and lists in it."""
    inner = enumerate(table) if isinstance(table, list) else table.items()
    for name, value in inner:
        key = f"{above}{name}"
        if all_of_it or not isinstance(value, Mapping):
            yield key, value
        if isinstance(value, Mapping) or (all_of_it and isinstance(value, list)):
            yield from _flat(value, f"{key}.", all_of_it)


def _texts(value: Any) -> list[str]:
    return (
        [text for one in value for text in _texts(one)] if isinstance(value, list) else [value] * isinstance(value, str)
    )


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """A value of the program file, in which a name alone stands for a trial's value in its type."""
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if not isinstance(value, str):
        return value
    names = command.names([value])
    return values[names[0]] if names and value == f"{{{names[0]}}}" else "".join(command.fill([value], values))


def _put(table: Any, keys: list[str], value: Any) -> None:
    """Set a value in nested tables and lists."""
    *above, last = keys
    for key in above:
        table = table[int(key)] if isinstance(table, list) else table.setdefault(key, {})
    table[int(last) if isinstance(table, list) else last] = value


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(str(name))} = {_toml(inner)}' for name, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        if isinstance(value, str)
        else command.text(value)
    )
