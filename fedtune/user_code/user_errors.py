"""Errors in a user's own code: one line that says what was being done, and Python's traceback from their line on."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from types import TracebackType
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.terminal import one_line, printable

PATHS: set[str] = set()  # all files of users' code that this process knows
_MACHINERY = ("<frozen importlib", __file__.replace("user_errors", "user_imports"))  # between two files of theirs


class UserCodeError(UserError):
    """An error in the user's own Python: its message is the line, `traceback` what commands show below it."""

    def __init__(self, line: str, traceback: str = "") -> None:
        """traceback: as Python writes it; "" where the line says enough."""
        super().__init__(line)
        self.traceback = traceback


def place(error: BaseException) -> str | None:
    """FILE:LINE of the innermost line of the user's code in an error's traceback, or in that of a cause; else None."""
    at = _theirs(error)
    return _lines(at)[-1] if at else None


def place_of(thing: Any) -> str:
    """FILE:LINE of a function, also of a partial, or of a class; as much of it as Python can tell."""
    while isinstance(thing, partial):
        thing = thing.func
    code = getattr(inspect.unwrap(thing), "__code__", None) if callable(thing) else None
    if code:
        return f"{code.co_filename}:{code.co_firstlineno}"
    file = getattr(inspect.getmodule(thing), "__file__", "") if isinstance(thing, type) else ""
    try:
        return f"{file}:{inspect.getsourcelines(thing)[1]}" if file else ""
    except (OSError, TypeError):
        return str(file)


def theirs(error: BaseException) -> bool:
    """Whether the user's code raised this error; Ctrl-C is nobody's."""
    return not isinstance(error, KeyboardInterrupt) and _theirs(error) is not None


def text(error: BaseException) -> str:
    """An error's message."""
    return str(error.msg if isinstance(error, SyntaxError) else error)


def kind(error: BaseException) -> str:
    """The name of an error's class."""
    return type(error).__name__


def describe(error: BaseException, otherwise: str = "") -> str:
    """An error in the user's code as one line: place, kind and message.  otherwise: the place if none is known."""
    name = "" if isinstance(error, UserError) else one_line(kind(error))
    return ": ".join(filter(None, [place(error) or otherwise, name, one_line(text(error))]))


def stack(error: BaseException) -> str:
    """An error's whole traceback for a log, printable."""
    return _printable(traceback.format_exception(error))


def only(error: BaseException) -> str:
    """An error without a stack, such as that of a file which Python cannot parse."""
    return _printable(traceback.format_exception_only(error))


def theirs_on(error: BaseException) -> str:
    """An error's traceback from the user's first line on; "" if it has none.  A wrong declaration is a line enough."""
    if isinstance(error, UserError):
        return error.traceback if isinstance(error, UserCodeError) else ""
    at = _theirs(error)
    if at is None:
        return ""
    first: TracebackType | None = at.__traceback__
    while first and first.tb_frame.f_code.co_filename not in PATHS:
        first = first.tb_next
    shown = traceback.TracebackException(type(at), at, first)
    shown.stack[:] = [f for f in shown.stack if not f.filename.startswith(_MACHINERY)]
    return _printable(shown.format())


@contextmanager
def reported(what: str = "", otherwise: str = "", passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """While the user's code is called: turn whatever it raises into a UserCodeError.

    what: what was being done then; "": an error that is not in a line of theirs stays as it is.  otherwise: the place
    if none is known.  passing: errors to raise unchanged, because they may be transient or are handled elsewhere.
    """
    try:
        with redirect_stdout(sys.stderr):  # what it prints is not a result
            yield
    except passing:
        raise
    except BaseException as error:
        if not theirs(error) and not (what and isinstance(error, Exception)):
            raise
        line = describe(error, otherwise)
        raise UserCodeError(f"{what}: {line}" if what else line, theirs_on(error)) from error


def _theirs(error: BaseException) -> BaseException | None:
    """The error, or the first of its causes, that passed through a file of the user's."""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:  # an error may be its own cause
        seen.add(id(at))
        if _lines(at):
            return at
        at = at.__cause__ or at.__context__
    return None


def _lines(error: BaseException) -> list[str]:
    """FILE:LINE of each line of the user's code in a traceback, and last of one that Python cannot parse."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places += [(error.filename or "", error.lineno or 0)] if isinstance(error, SyntaxError) else []
    return [f"{file}:{line}" for file, line in places if file in PATHS]


def _printable(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, "".join(lines).splitlines())) + "\n"
