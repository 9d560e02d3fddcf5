"""Fill a command's template with a configuration: `python train.py --lr {lr}` becomes a list of words.

No shell reads them, so a value is always one word, whatever is in it.  Where the command itself calls a shell
(`sh -c '…'`), values are quoted in its script.
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
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "yash", "rbash"}
WITH_FILE = ("--rcfile", "--init-file")  # long options of a shell that a word belongs to
# programs that have a shell read what they are given, with the option that says so
READERS = dict.fromkeys(
    ("su", "runuser", "sg", "flock", "script", "fish", "csh", "tcsh"), "-[A-Za-z]*c|--(.*-)?command"
)
READERS |= {"env": "-[A-Za-z]*S|--split-string", "ssh": ""}
REREADS = re.compile(r"`|<<|\b(?:eval|su|ssh)\b")  # what takes a quoted word for something else in a script
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
    _require_plain(words, script, values)
    filled = [_in_script(word, values) if at == script else _word(word, values) for at, word in enumerate(words)]
    return [made for made, word in zip(filled, words, strict=True) if made or not word]


def text(value: Any) -> str:
    """A value as a program reads it: a float with all its digits, a bool as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _word(word: str, values: Mapping[str, Any]) -> str:
    return "".join(lead + ("" if name is None else text(values[name])) for lead, name in _parts(word))


def _in_script(script: str, values: Mapping[str, Any]) -> str:
    """A shell's script with each value as one word; UserError where the shell would read it as something else."""
    found = ""
    for literal, name in _parts(script):
        found += literal
        value = "" if name is None else text(values[name])
        plain = name is None or shlex.quote(value) == value
        if not plain and (_inside_quotes(found) or REREADS.search(script)):
            raise UserError(
                f"{{{name}}} must stand without quotes, `…`, <<, eval, su and ssh in a shell's script, because it is "
                f"{value!r}; a script in a file can take it as an argument"
            )
        found += value if plain else shlex.quote(value)
    return found


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
    """The place of the script among the words of a command that calls a shell; -1 if none is."""
    for at, word in enumerate(words):
        if Path(word).name in SHELLS:
            later, reads = at + 1, False
            while later < len(words) and re.match(r"[-+].", words[later]) and words[later - 1] != "--":
                option = words[later]
                long = option.startswith("--")
                reads |= not long and option[0] == "-" and "c" in option
                later += 1 + (option in WITH_FILE if long else option.count("o") + option.count("O"))
            if reads and later < len(words):
                return later
    return -1


def _require_plain(words: Sequence[str], script: int, values: Mapping[str, Any]) -> None:
    """UserError for a value that another program splits, or has a shell read: "a b" would become two words."""
    for at, word in enumerate(words):
        if (option := READERS.get(reader := Path(word).name)) is None:
            continue
        read = [later for i, later in enumerate(words) if i > at and (i != script or reader == "ssh")]
        for name in names(read) if any(re.match(option, later) for later in read) else ():
            if (value := text(values[name])) != shlex.quote(value):
                raise UserError(
                    f"{{{name}}} must be one plain word for {reader}, which has it read anew, but is {value!r}; a "
                    "script in a file can take it as an argument"
                )


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
