"""What is typed where a name is taken: `FILE.py`, `FILE.py:NAME`, `FILE.py:NAME(depth=2)`, `FILE.npz`, `FOLDER/`."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.errors import UserError

CODE, DATA = (".py",), (".npz",)
PICKLED = ".pickle"  # a class of a notebook


class Reference(NamedTuple):
    """The parts of a reference."""

    path: str
    member: str  # what comes after the colon, or nothing
    options: str  # its `(depth=2)`, or nothing


def is_reference(text: str, known: Collection[str] = ()) -> bool:
    """Whether it is a file or folder and no name.  known: the names there are, which come first."""
    if not text or text in known:
        return False
    ends = "|".join(re.escape(suffix) for suffix in (*CODE, *DATA, PICKLED))
    return bool(re.fullmatch(rf".*({ends})(:.*)?", text, re.DOTALL)) or "/" in text or Path(text).is_dir()


def call_options(name: str) -> dict[str, Any]:
    """The options of `FILE.py:NAME(a=1, b="x")`; UserError unless all are literals by name."""
    text = parsed(name).options
    return _literals(name, text) if text else {}


def plain_name(name: str) -> str:
    """A canonical name as part of a folder's or file's name."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-") if is_reference(name) else name


def split(text: str) -> list[str]:
    """Names and references between commas, but for commas inside brackets."""
    cuts, depth, quote = [-1], 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif depth and letter in "'\"":
            quote = letter
        elif letter in "()":
            depth = max(0, depth + (1 if letter == "(" else -1))
        elif letter == "," and not depth:
            cuts.append(at)
    return [text[a + 1 : b].strip() for a, b in pairwise([*cuts, len(text)])]


def whole_path(path: str | Path) -> Path:
    """The path from the root of the file system."""
    return Path(os.path.abspath(Path(path).expanduser()))


def parsed(text: str) -> Reference:
    """A reference's parts; UserError if what comes after the colon is no name."""
    # the shortest path that leaves a name: both folders and options may have `.py:` in them
    named = re.fullmatch(r"(.*?\.py):([^\W\d]\w*)(\(.*\))?", text, re.DOTALL)
    if named:
        return Reference(named[1], named[2], named[3] or "")
    if re.fullmatch(r".*\.py:[^/]*", text, re.DOTALL) and not text.endswith(DATA):
        raise UserError(f"after FILE.py: comes a name of that file, or NAME(option=value), but got {text!r}")
    return Reference(text, "", "")


def _literals(text: str, options: str) -> dict[str, Any]:
    """The values of `(a=1, b="x")`."""
    try:
        call = ast.parse(f"f{options}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UserError(
            f"options after a name must be literals by name, as in net.py:net(depth=2, kind='gru'), but got {text!r}"
        ) from None


def options_text(text: str, options: str) -> str:
    """Options as canonical names have them."""
    values = _literals(text, options) if options else {}
    return f"({','.join(f'{n}={v!r}' for n, v in values.items())})" if values else ""
