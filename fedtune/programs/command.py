"""Fill a command's template with a configuration: `python train.py --lr {lr}` becomes a list of words.

No shell reads them, so a value is always one word, whatever is in it.  Where the command itself calls a shell
(`sh -c '…'`), values in its script are quoted for it.
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
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash"}
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
        raise UserError(
            f"must be one program, as no shell reads it, but has {operator!r}; write sh -c '…', or a list of words"
        )
    return words


def names(words: Sequence[str]) -> list[str]:
    """The names in braces, each once; UserError for braces that hold something else."""
    return list(dict.fromkeys(name for word in words for _, name in _parts(word) if name is not None))


def fill(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The words with values in place of names.  A word that is only a name is left out if its value is empty text."""
    script = _script(words)
    filled = [_word(word, values, quoted=at == script) for at, word in enumerate(words)]
    return [text for text, word in zip(filled, words, strict=True) if text or not word]


def text(value: Any) -> str:
    """A value as a program reads it: a float with all its digits, a bool as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _word(word: str, values: Mapping[str, Any], quoted: bool) -> str:
    found = ""
    for literal, name in _parts(word):
        found += literal
        if name is not None:
            value = text(values[name])
            found += _for_shell(name, value, literal=found) if quoted else value
    return found


def _for_shell(name: str, value: str, literal: str) -> str:
    """A value in a shell's script; UserError if quotes are already there that would spoil it."""
    safe = shlex.quote(value)
    if safe != value and _inside_quotes(literal):
        raise UserError(
            f"{{{name}}} must stand without quotes in a shell's script, because fedtune adds them to {value!r}"
        )
    return safe


def _inside_quotes(script: str) -> bool:
    open_quote, escaped = "", False
    for letter in script:
        if escaped:
            escaped = False
        elif letter == "\\" and open_quote != "'":
            escaped = True
        elif letter == open_quote:
            open_quote = ""
        elif letter in "'\"" and not open_quote:
            open_quote = letter
    return bool(open_quote)


def _script(words: Sequence[str]) -> int:
    """The place of the script among the words of a command that calls a shell; -1 if it calls none."""
    for at, word in enumerate(words):
        if Path(word).name not in SHELLS:
            continue
        for later, option in enumerate(words[at + 1 :], at + 1):
            if not re.fullmatch(r"-[A-Za-z]+", option):
                break
            if "c" in option and later + 1 < len(words):
                return later + 1
    return -1


def _parts(word: str) -> Iterator[tuple[str, str | None]]:
    """A word's literal texts, each with the name that follows."""
    advice = "for braces of the program's own write {{ and }}"
    try:
        found = list(string.Formatter().parse(word))
    except ValueError as error:
        raise UserError(f"must have names in braces, but got {shown(word)}: {error}; {advice}") from None
    for literal, name, form, conversion in found:
        if form or conversion:
            raise UserError(
                f"must have names in braces and nothing else, but got {shown(word)}; a value is written with all its "
                f"digits, so write {{{name}}}"
            )
        if name is not None and not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UserError(f"must have names in braces, but got {{{name}}} in {shown(word)}; {advice}")
        yield literal, name
