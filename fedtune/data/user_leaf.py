"""LEAF's JSON: train/*.json and test/*.json, or all_data/*.json, each with users, num_samples and user_data.

Rows of a user are lists of numbers (FEMNIST's pixels, synthetic features), texts (Shakespeare), or lists of fields of
which the option x names one by its number (Sent140's text is 4).  Users are the owners.  num_samples is not relied on:
LEAF's own test files of Shakespeare count rows that they leave out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
    for (name, _), count in Counter((user.name, user.split) for user in users).items():
        if count > 1:
            raise UserError(f"users of {path} must have different names, but two are called {name!r}; rename one")
    forms = ["text" if isinstance(user.x, list) else f"shape {user.x.shape[1:]}" for user in users]
    for user, form in zip(users, forms, strict=True):
        if form != forms[0]:
            pair = f"users {users[0].name} and {user.name} have {forms[0]} and {form}"
            raise UserError(f"rows of {path} must all be alike, but {pair}")
    sizes = [len(user.y) for user in users]
    texts, split = forms[0] == "text", np.repeat([user.split for user in users], sizes)
    miscounted = sum(user.miscounted for user in users)
    notes = (f"num_samples of {several(miscounted, 'user')} is not the number of rows, which counts",)
    return Rows(
        [text for user in users for text in user.x] if texts else np.concatenate([user.x for user in users]),
        user_names.joined(str(path), [user.y for user in users]),
        np.repeat([user.name for user in users], sizes),
        split if len({s for s, _ in files}) > 1 else None,
        kind=user_rows.TEXT if texts else "",
        notes=notes if miscounted else (),
    )


def _users(file: Path, split: int, options: Options) -> Iterator[_User]:
    """The users of a file that have rows."""
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as LEAF's JSON: {reason}; make it again") from error
    entries: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in KEYS]
    users, counts, data = entries
    valid = isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)
    if not valid or len(users) != len(counts):
        raise UserError(f"{file} needs lists users and num_samples of one length, and a dictionary user_data of them")
    for user, count in zip(users, counts, strict=True):
        rows = data.get(user) if isinstance(user, str) else None
        if not isinstance(rows, dict) or not isinstance(rows.get("x"), list) or not isinstance(rows.get("y"), list):
            raise UserError(f"{file} needs lists x and y of each user, but has none of {shown(user)}")
        x, y = rows["x"], rows["y"]
        whose = f"{file}, user {user}"
        if len(x) != len(y):
            raise UserError(f"each row needs a label, but x of {whose} has {several(len(x), 'row')} and y {len(y)}")
        if y:
            yield _User(user, split, _rows(whose, x, options.x), _labels(whose, y), count != len(y))


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
