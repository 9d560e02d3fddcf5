"""LEAF's JSON: train/*.json and test/*.json, or all_data/*.json, each with users, num_samples and user_data.

Rows of a user are lists of numbers (FEMNIST's pixels, synthetic features), texts (Shakespeare), or lists of fields of
which the option x names one by its number (Sent140's text is 4).  Users are the owners.  num_samples is not relied on:
LEAF's own test files of Shakespeare count rows that they leave out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtune.core import bounded, zipped
from fedtune.core.errors import UserError, shown
from fedtune.core.terminal import several
from fedtune.data import user_names, user_rows
from fedtune.data.plain import plain
from fedtune.data.user_options import Options, Rows
from fedtune.data.user_pictures import ENDINGS
from fedtune.user_code import layouts

KEYS = ("users", "num_samples", "user_data")


class _User(NamedTuple):
    """The rows of a user in a file."""

    name: str
    split: int
    x: Any
    y: np.ndarray
    miscounted: bool


def read(path: Path, options: Options) -> Rows:
    """The rows of all users, file by file."""
    files = layouts.leaf_files(path)
    users = [user for split, file in files for user in _users(file, split, options)]
    if not users:
        raise UserError(f"{path} needs users with rows, but no file has any")
    names_seen: set[tuple[str, int]] = set()
    for user in users:
        if (user.name, user.split) in names_seen:
            raise UserError(f"users of {path} must have different names, but two are called {user.name!r}; rename one")
        names_seen.add((user.name, user.split))
    texts = isinstance(users[0].x, list)
    for user in users:
        if isinstance(user.x, list) != texts or (not texts and user.x.shape[1:] != users[0].x.shape[1:]):
            forms = " and ".join(
                "text" if isinstance(u.x, list) else f"shape {u.x.shape[1:]}" for u in (users[0], user)
            )
            raise UserError(f"rows of {path} must all be alike, but users {users[0].name} and {user.name} have {forms}")
    sizes = [len(user.y) for user in users]
    split = np.repeat([user.split for user in users], sizes) if len({s for s, _ in files}) > 1 else None
    x: Any = [text for user in users for text in user.x] if texts else np.concatenate([user.x for user in users])
    y = user_names.joined(str(path), [user.y for user in users])
    miscounted = sum(user.miscounted for user in users)
    notes = (f"num_samples of {several(miscounted, 'user')} is not the number of rows, which counts",)
    owner = np.repeat([user.name for user in users], sizes)
    return Rows(x, y, owner, split, kind=user_rows.TEXT if texts else "", notes=notes if miscounted else ())


def _users(file: Path, split: int, options: Options) -> Iterator[_User]:
    """The users of a file that have rows."""
    content = _content(file)
    for user, count in zip(content["users"], content["num_samples"], strict=True):
        rows = content["user_data"].get(user) if isinstance(user, str) else None
        if not isinstance(rows, dict) or not isinstance(rows.get("x"), list) or not isinstance(rows.get("y"), list):
            raise UserError(f"{file} needs lists x and y of each user, but has none of {shown(user)}")
        x, y = rows["x"], rows["y"]
        whose = f"{file}, user {user}"
        if len(x) != len(y):
            raise UserError(f"each row needs a label, but x of {whose} has {several(len(x), 'row')} and y {len(y)}")
        if y:
            yield _User(user, split, _rows(whose, x, options.x), _labels(whose, y), count != len(y))


def _content(file: Path) -> dict[str, Any]:
    """A file's lists of users and numbers, and their rows."""
    try:
        content = json.loads(bounded.read(file, zipped.max_bytes()))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as LEAF's JSON: {reason}; make it again") from error
    if not isinstance(content, dict) or not all(name in content for name in KEYS):
        actual = ", ".join(list(content)[:5]) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise UserError(f"{file} needs {', '.join(KEYS)}, as LEAF writes them, but has {actual or 'nothing'}")
    users, counts, rows = (content[name] for name in KEYS)
    valid = isinstance(users, list) and isinstance(counts, list) and isinstance(rows, dict)
    if not valid or len(users) != len(counts):
        raise UserError(f"{file} needs lists users and num_samples of one length, and a dictionary user_data of them")
    return content


def _rows(whose: str, x: list[Any], field: Any) -> np.ndarray | list[str]:
    """The rows of a user: numbers, or texts."""
    if field != ():
        if isinstance(field, bool) or not isinstance(field, int):
            raise UserError(f"the option x of LEAF's data is the number of a field, but got {shown(field)}")
        if not all(isinstance(row, list) and -len(row) <= field < len(row) for row in x):
            raise UserError(f"x={field} names a field of each row, but rows of {whose} are like {shown(x[0])}")
        x = [row[field] for row in x]
    if all(isinstance(row, str) for row in x):
        if x[0].lower().endswith(ENDINGS):
            raise UserError(f"x of {whose} names pictures ({x[0]}), not their pixels; --dataset celeba reads CelebA's")
        return x
    if any(isinstance(v, str) for row in x if isinstance(row, list) for v in row):
        raise UserError(
            f"rows of {whose} have {several(len(x[0]), 'field')} like {shown(x[0])}; name one, as in x=4 for the text "
            "of Sent140"
        )
    rows = plain(whose, "x", [[row] if not isinstance(row, list) else row for row in x])
    user_rows.require_rows(whose, rows)
    return rows


def _labels(whose: str, y: list[Any]) -> np.ndarray:
    if any(isinstance(v, list | dict) for v in y):
        raise UserError(
            f"y of {whose} must be one class per row, but is {shown(y[0])}; Reddit's next words are not classes"
        )
    return plain(whose, "y", ["space" if v == " " else v for v in y])  # Shakespeare's next characters
