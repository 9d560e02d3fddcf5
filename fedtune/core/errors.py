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
    except Exception:  # of a user's class, or infinitely nested
        return f"something of type {type(value).__name__}"
    return text if len(text) <= VALUE else f"{text[: VALUE * 2 // 3]}…{text[-VALUE // 4 :]}"


class Diverged(ArithmeticError):
    """A loss or weights became NaN or infinite; the message names the round and the clients."""


SHOWN = 200  # characters of known names that a message lists; if they are longer, only the nearest three are listed
NEAR = 3
SHORT = 3  # letters of a name that is still like another with one wrong: ls, lr


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for an unknown name, with the nearest known name and a list of all.

    where: the command that shows all of them.  If they do not fit into a line, only the nearest are listed.
    """
    names = sorted(known)
    given = name if len(name) <= SHOWN else f"{name[: SHOWN // 2]}…"
    near = _nearest(given, names, 1, cutoff=0.6 if len(given) > SHORT else 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = f"known are {', '.join(names)}"
    if len(listed) > SHOWN:
        nearest = _nearest(given, names, NEAR, cutoff=0.0)
        listed = f"nearest are {', '.join(nearest)}" + (f"; {where} shows all {len(names)}" if where else "")
    return UserError(f"unknown {kind} {given!r}: {hint}{listed}")


def _nearest(given: str, names: Iterable[str], count: int, cutoff: float) -> list[str]:
    """The names nearest to one that came, those that begin with it first; the dashes of options do not count."""
    bare, sought = {name.lstrip("-"): name for name in names}, given.lstrip("-")
    begun = sorted((n for n in bare if sought and n.startswith(sought)), key=len)
    like = difflib.get_close_matches(sought, bare, n=count, cutoff=cutoff)
    return [bare[n] for n in dict.fromkeys([*begun, *like])][:count]
