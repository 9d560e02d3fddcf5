"""What a user did wrong, said in one line: the rule, what came, what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

VALUE = 120  # letters of a value that a message shows in full


class UserError(ValueError):
    """Input that cannot be used.  The command line prints it as one line and exits with status 2."""


def shown(value: object) -> str:
    """A value in a message: as Python writes it, cut where that is long."""
    try:
        text = repr(value)
    except Exception:  # of a class of the user's own, or nested without end
        return f"something of type {type(value).__name__}"
    return text if len(text) <= VALUE else f"{text[: VALUE * 2 // 3]}…{text[-VALUE // 4 :]}"


class Diverged(ArithmeticError):
    """A loss or weights became NaN or infinite; the message names the round and the clients."""


SHOWN = 200  # letters of known names that a line lists; of more it has the nearest three
NEAR = 3


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest one that does, and all, or where all are to be seen.

    where: the command that shows them.  Of more than fit into a line only the nearest are named.
    """
    names = sorted(known)
    given = name if len(name) <= SHOWN else f"{name[: SHOWN // 2]}…"
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = f"known are {', '.join(names)}"
    if len(listed) > SHOWN:
        nearest = difflib.get_close_matches(given, names, n=NEAR, cutoff=0.0)
        listed = f"nearest are {', '.join(nearest)}" + (f"; {where} shows all {len(names)}" if where else "")
    return UserError(f"unknown {kind} {given!r}: {hint}{listed}")
