"""Fill a command's template with a configuration: `python train.py --lr {lr}` becomes a list of words.

No shell reads them, so a value is always one word, whatever is in it.  Where the command itself calls a shell, or
another program that reads words anew, values must be plain: of "a b" it would make two words.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, shown

OWN = ("rounds", "seed", "gpu", "trial", "folder", "checkpoint")  # names in braces besides hyperparameters
NAME = r"[A-Za-z_][\w.-]{0,59}"  # of a hyperparameter
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "yash", "rbash", "fish", "csh", "tcsh")
# programs that read words anew, with the option that says so: sh -c '…'
READERS = dict.fromkeys((*SHELLS, "su", "runuser", "sg", "flock", "script"), r"-\w*c\w*|--(.*-)?command(=.*)?")
READERS |= {"env": r"-\w*S\w*|--split-string(=.*)?", "ssh": ".*"}
OPERATOR = r"\|\|?|&&?|;|<|\d?>>?\S*"  # what only a shell would understand; the program would get it as an argument


def split(command: str) -> list[str]:
    """A command's words; UserError if a quote is not closed, or if only a shell could run it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"must be words as in a shell, but got {shown(command)}: {str(error).lower()}") from None
    if words and re.match(r"[A-Za-z_]\w*=", words[0]):
        raise UserError(f"must begin with a program, but got {words[0]!r}; say it in [environment], or after env")
    if operator := next((word for word in words if re.fullmatch(OPERATOR, word)), None):
        raise UserError(f"must be one program, but has {operator!r}, and no shell reads it; write sh -c '…'")
    return words


def names(words: Sequence[str]) -> list[str]:
    """The names in braces, each once; UserError for braces that hold something else."""
    return list(dict.fromkeys(name for word in words for _, name in _parts(word) if name is not None))


def fill(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The words with values in place of names.  A word that is only a name is left out if its value is empty text."""
    _require_plain(words, values)
    return [made for word in words if (made := filled(word, values)) or not word]


def filled(word: str, values: Mapping[str, Any]) -> str:
    """A text with values in place of names."""
    return "".join(lead + ("" if name is None else text(values[name])) for lead, name in _parts(word))


def text(value: Any) -> str:
    """A value as a program reads it: a float with all its digits, a bool as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _require_plain(words: Sequence[str], values: Mapping[str, Any]) -> None:
    """UserError for a value that a shell, or a program like it, would read as something else."""
    for at, reader in enumerate(Path(word).name for word in words):
        later = words[at + 1 :]
        anew = reader in READERS and any(re.fullmatch(READERS[reader], word, re.DOTALL) for word in later)
        for name in names(later) if anew else ():
            if (value := text(values[name])) != shlex.quote(value):
                raise UserError(f"{{{name}}} must be one plain word for {reader}, but is {value!r}; write a script")


def _parts(word: str) -> Iterator[tuple[str, str | None]]:
    """A word's literal texts, each with the name that follows."""
    rule = f"must have names alone in braces, and other braces as {{{{ and }}}}, but got {shown(word)}"
    try:
        found = list(string.Formatter().parse(word))
    except ValueError as error:
        raise UserError(f"{rule}: {error}") from None
    for literal, name, form, conversion in found:
        if form or conversion or (name is not None and not re.fullmatch(r"[A-Za-z_][\w.-]*", name)):
            raise UserError(rule)
        yield literal, name
