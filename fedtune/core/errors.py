"""What a user did wrong, said in one line: the rule, what came, what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used.  The command line prints it as one line and exits with status 2."""


class Diverged(ArithmeticError):
    """Training left the finite numbers; the message names the round and the clients."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}")
