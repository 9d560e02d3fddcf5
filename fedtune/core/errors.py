"""Errors that tell users in one line what they did wrong: the rule, what came, what would do."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Collection, Iterable

VALUE = 120  # characters of a value that a message shows in full


class UserError(ValueError):
    """Input that cannot be used.  The command line prints it as one line and exits with status 2."""


class Unfit(UserError):
    """What an algorithm does with uploads excludes it from a part of the round; others may take part."""


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
NEAREST = 3  # the most similar names that it proposes if all of them are longer
SHORT_NAME = 3  # names up to this length may differ in one letter of two: ls, lr


def unknown(kind: str, name: str, known: Iterable[str], command: str = "") -> UserError:
    """The error for an unknown name, with similar ones, and all known ones or the command that shows them."""
    names = sorted(known)
    text = name if len(name) <= LIST_LENGTH else f"{name[: LIST_LENGTH // 2]}…"
    similar, listed = _similar(text, names), f"known are {', '.join(names)}"
    if len(listed) <= LIST_LENGTH:
        similar = similar[:1]
    else:
        some = f"{textwrap.shorten(listed, LIST_LENGTH, placeholder=' …')} ({len(names)} in all)"
        listed = f"all {len(names)} are in {command}" if command else some
    hint = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
    return UserError(f"unknown {kind} {text!r}: {hint}{listed}")


def require_known(kind: str, names: Iterable[str], known: Collection[str], command: str = "") -> None:
    """UserError for the first of these names that is not a known one: see `unknown`."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known, command)


def _similar(text: str, names: Iterable[str]) -> list[str]:
    """The names similar to a given one, those that begin with it first; the dashes of options do not count."""
    bare, wanted = {name.lstrip("-"): name for name in names}, text.lstrip("-")
    completions = sorted((n for n in bare if wanted and n.startswith(wanted)), key=len)
    similar = difflib.get_close_matches(wanted, bare, n=NEAREST, cutoff=0.6 if len(text) > SHORT_NAME else 0.5)
    return [bare[n] for n in dict.fromkeys([*completions, *similar])][:NEAREST]
