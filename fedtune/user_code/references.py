"""References to a user's file or folder: `FILE.py`, `FILE.py:NAME`, `FILE.py:NAME(depth=2)`, `FILE.npz`, `FOLDER/`.

Tables and folders may be followed by options too: `FILE.csv(y='sick')`, `FOLDER/(x='img')`.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.errors import UserError

CODE, DATA = (".py",), (".npz",)
TABLES = (".csv", ".tsv", ".parquet", ".json")
PICKLED = ".pickle"  # a class defined in a notebook
LONGEST = 80  # characters of a name in a folder's name
_OPTIONS = r"\(\s*(?:[^\W\d]\w*\s*=.*)?\)"
_ENDS = f"(?i:{'|'.join(re.escape(suffix) for suffix in TABLES)})"  # in any case


class Reference(NamedTuple):
    """The parts of a reference."""

    path: str
    member: str  # the name after the colon, or ""
    options: str  # `(depth=2)` after that name or after data, or ""


def is_reference(text: str, known: Collection[str] = ()) -> bool:
    """Whether a text is a file or folder rather than a name.  known: existing names, which take precedence."""
    if not text or text in known:
        return False
    text = with_slash(text)
    ends = "|".join([*map(re.escape, (*CODE, PICKLED)), *(f"(?i:{re.escape(suffix)})" for suffix in DATA), _ENDS])
    return bool(re.fullmatch(rf".*({ends})([:(].*)?", text, re.DOTALL)) or "/" in text or Path(text).is_dir()


def with_slash(text: str) -> str:
    """`FOLDER(y='sick')` as `FOLDER/(y='sick')`, if there is such a folder and nothing of the whole name."""
    found = re.fullmatch(rf"(.*[^/])({_OPTIONS})", text, re.DOTALL)
    return f"{found[1]}/{found[2]}" if found and Path(found[1]).is_dir() and not Path(text).exists() else text


def call_options(name: str) -> dict[str, Any]:
    """The options of `FILE.py:NAME(a=1, b="x")`; UserError unless all are keyword literals."""
    text = parsed(name).options
    return _literals(name, text) if text else {}


def called(name: str) -> tuple[str, dict[str, Any]]:
    """A built-in name and its options: `vit(depth=2)`; UserError unless they are keyword literals."""
    found = re.fullmatch(r"([\w-]+)\s*(\(.*\))", name, re.DOTALL)
    return (found[1], _literals(name, found[2])) if found else (name, {})


def plain_name(name: str) -> str:
    """A canonical name in a form fit for file and folder names."""
    if not is_reference(name) and "[" not in name:
        return name
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-")
    if len(plain) <= LONGEST or not name.endswith(")"):
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def split(text: str) -> list[str]:
    """Split names and references at commas, except inside brackets."""
    cuts, depth, quote = [-1], 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif depth and letter in "'\"":
            quote = letter
        elif letter in "()[]":
            depth = max(0, depth + (1 if letter in "([" else -1))
        elif letter == "," and not depth:
            cuts.append(at)
    return [text[a + 1 : b].strip() for a, b in pairwise([*cuts, len(text)])]


def whole_path(path: str | Path) -> Path:
    """The absolute path."""
    return Path(os.path.abspath(Path(path).expanduser()))


def parsed(text: str) -> Reference:
    """Parse a reference; UserError if the part after the colon is not a name."""
    # the shortest path that leaves a name: folders and options may both contain `.py:`
    named = re.fullmatch(r"(.*?\.py):([^\W\d]\w*)(\(.*\))?", text, re.DOTALL)
    if named:
        return Reference(named[1], named[2], named[3] or "")
    if re.fullmatch(r".*\.py:[^/]*", text, re.DOTALL) and not text.endswith(DATA):
        raise UserError(f"FILE.py: must be followed by a name in that file, or NAME(option=value), but got {text!r}")
    table = re.fullmatch(rf"(.*?(?:{_ENDS}|/))({_OPTIONS})", text, re.DOTALL)
    return Reference(table[1], "", table[2]) if table else Reference(text, "", "")


def _literals(text: str, options: str) -> dict[str, Any]:
    """The values of `(a=1, b="x")`."""
    try:
        call = ast.parse(f"f{options}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UserError(
            "options after a name must be keyword literals, as in net.py:net(depth=2, kind='gru') or "
            f"table.csv(y='sick'), but got {text!r}"
        ) from None


def options_text(text: str, options: str) -> str:
    """Options in their canonical form."""
    values = _literals(text, options) if options else {}
    return f"({','.join(f'{n}={v!r}' for n, v in values.items())})" if values else ""
