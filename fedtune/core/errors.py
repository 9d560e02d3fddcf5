"""Errors that tell users in one line what they did wrong: the rule, what came, what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

VALUE = 120  # characters of a value that a message shows in full


class UserError(ValueError):
    """Input that cannot be used.  The command line prints it as one line and exits with status 2."""


def shown(value: object) -> str:
    """A value for a message, as Python writes it; shortened if it is long."""
    try:
        text = repr(value)
    except Exception:  # repr of a user's class fails, or the value is infinitely nested
        return f"something of type {type(value).__name__}"
    return text if len(text) <= VALUE else f"{text[: VALUE * 2 // 3]}…{text[-VALUE // 4 :]}"


class Diverged(ArithmeticError):
    """A loss or weights became NaN or infinite; the message names the round and the clients."""


LIST_LENGTH = 200  # the most characters of known names that a message lists
NEAREST = 3  # names that it lists if all of them are longer
SHORT_NAME = 3  # names up to this length may differ in one letter of two: ls, lr


def unknown(kind: str, name: str, known: Iterable[str], command: str = "") -> UserError:
    """The error for an unknown name, with all known ones, or the nearest and the command that shows all."""
    names = sorted(known)
    text = name if len(name) <= LIST_LENGTH else f"{name[: LIST_LENGTH // 2]}…"
    similar = _nearest(text, names, 1, cutoff=0.6 if len(text) > SHORT_NAME else 0.5)
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    listed = f"known are {', '.join(names)}"
    if len(listed) > LIST_LENGTH:
        nearest = _nearest(text, names, NEAREST, cutoff=0.0)
        listed = f"nearest are {', '.join(nearest)}" + (f"; {command} shows all {len(names)}" if command else "")
    return UserError(f"unknown {kind} {text!r}: {hint}{listed}")


def _nearest(text: str, names: Iterable[str], count: int, cutoff: float) -> list[str]:
    """The names nearest to a given one, those that begin with it first; the dashes of options do not count."""
    bare, wanted_name = {name.lstrip("-"): name for name in names}, text.lstrip("-")
    completions = sorted((n for n in bare if wanted_name and n.startswith(wanted_name)), key=len)
    similar = difflib.get_close_matches(wanted_name, bare, n=count, cutoff=cutoff)
    return [bare[n] for n in dict.fromkeys([*completions, *similar])][:count]
