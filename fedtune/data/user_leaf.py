"""LEAF's JSON: train/*.json and test/*.json, or all_data/*.json, each with users, num_samples and user_data.

Rows of a user are lists of numbers (FEMNIST's pixels, synthetic features), texts (Shakespeare), or lists of fields of
which the option x names one by its number (Sent140's text is 4).  Users are the owners.  num_samples is not read:
LEAF's own test files of Shakespeare count rows that are not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedtune.core.errors import UserError, shown
from fedtune.data import user_rows
from fedtune.data.plain import plain
from fedtune.data.reading import reading
from fedtune.data.user_options import Options, Part, Rows, joined
from fedtune.data.user_pictures import ENDINGS
from fedtune.user_code import layouts


def read(path: Path, options: Options) -> Rows:
    """The rows of all users, file by file."""
    files = layouts.leaf_files(path)
    users = [user for split, file in files for user in _users(file, split, options)]
    if not users or len({(user.owner, user.split) for user in users}) < len(users):
        raise UserError(f"{path} needs users with rows, each with a name of its own; make it again")
    rows = joined(path, users)
    return rows if len({split for split, _ in files}) > 1 else rows._replace(split=None)


def _users(file: Path, split: int, options: Options) -> Iterator[Part]:
    """The users of a file that have rows."""
    with reading(file, "LEAF's JSON", "it needs users, and user_data with equally long lists x and y of each"):
        content = json.loads(file.read_bytes())
        found = [(user, content["user_data"][user]["x"], content["user_data"][user]["y"]) for user in content["users"]]
        wrong = [u for u, x, y in found if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y)]
        if wrong or len(content["user_data"]) != len(found):
            raise ValueError(f"users are {len(found)}, in user_data {len(content['user_data'])}; of wrong form {wrong}")
    for user, x, y in found:
        if y:
            whose = f"{file}, user {user}"
            rows = _rows(whose, x, options.x)
            form = "text" if isinstance(rows, list) else f"numbers of shape {rows.shape[1:]}"
            yield Part(user, user, split, form, rows, _labels(whose, y))


def _rows(whose: str, x: list[Any], field: Any) -> np.ndarray | list[str]:
    """The rows of a user: numbers, or texts."""
    if field != ():
        if type(field) is not int or not all(isinstance(row, list) and -len(row) <= field < len(row) for row in x):
            raise UserError(
                f"the option x of LEAF's data is the number of a field of each row, but is {shown(field)}, and rows of "
                f"{whose} are like {shown(x[0])}"
            )
        x = [row[field] for row in x]
    if all(isinstance(row, str) for row in x):
        if x[0].lower().endswith(ENDINGS):
            raise UserError(f"x of {whose} names pictures ({x[0]}), not their pixels; --dataset celeba reads CelebA's")
        return x
    if any(isinstance(v, str) for row in x if isinstance(row, list) for v in row):
        raise UserError(f"rows of {whose} have fields, {shown(x[0])}; name one, as in x=4 for the text of Sent140")
    rows = plain(whose, "x", [row if isinstance(row, list) else [row] for row in x])
    user_rows.require_rows(whose, rows)
    return rows


def _labels(whose: str, y: list[Any]) -> np.ndarray:
    if any(isinstance(v, list | dict) for v in y):
        raise UserError(
            f"y of {whose} must be one class per row, but is {shown(y[0])}; Reddit's next words are not classes"
        )
    return plain(whose, "y", ["space" if v == " " else v for v in y])  # Shakespeare's next characters
