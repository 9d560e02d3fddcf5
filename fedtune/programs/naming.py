"""What stands in place of an algorithm: a program's file, its command, or the folder of a Flower app."""

from __future__ import annotations

import re

SUFFIX = ".toml"


def is_file(word: str) -> bool:
    """Whether it is a program file."""
    return word.endswith(SUFFIX)


def is_command(word: str) -> bool:
    """Whether it is a program's command, which names a hyperparameter in braces."""
    return "{" in word and not is_file(word)


def is_app(word: str) -> bool:
    """Whether it is the folder of a Flower app: `.`, or a path with a slash, of no file of Python's."""
    is_folder = word in (".", "..", "~") or "/" in word
    return is_folder and not is_file(word) and not is_command(word) and not re.search(r"\.py\b", word)


def is_program(word: str) -> bool:
    """Whether what was given in place of an algorithm is a program of the user's, in any of these forms."""
    return is_file(word) or is_command(word) or is_app(word)
