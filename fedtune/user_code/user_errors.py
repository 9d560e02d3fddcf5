"""Errors in a user's own code: whether it is theirs, where in their file, and how to say it in one line."""

from __future__ import annotations

import dis
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType, TracebackType
from typing import Any

from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import LINE, one_line, printable
from fedtune.user_code import process_exit, user_imports

PATHS: set[str] = set()  # all files of users' code that this process knows
LINES = 100  # lines of a stack that are shown at each of its ends
NEVER_AWAITED = "was never awaited"  # Python's warning about a coroutine, at the line where it happens to be discarded
_RAISE = dis.opmap["RAISE_VARARGS"]


def place(error: BaseException) -> str | None:
    """FILE:LINE of the innermost line of the user's code in an error's traceback; None if there is none."""
    return user_imports.place(error, PATHS)


def line_now() -> str:
    """FILE:LINE of the user's code that is running now; "" if none is."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_filename not in PATHS:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def theirs(error: BaseException) -> bool:
    """Whether the user's code raised this error, of any kind; for Ctrl-C only if their line has a `raise`."""
    if not isinstance(error, KeyboardInterrupt):
        return place(error) is not None
    at: TracebackType | None = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if at is None or at.tb_frame.f_code.co_filename not in PATHS:
        return False
    return at.tb_frame.f_code.co_code[at.tb_lasti] == _RAISE


def text(error: BaseException) -> str:
    """An error's message; "" if it cannot be obtained."""
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # a user's class
        return ""


def kind(error: BaseException) -> str:
    """The name of an error's class, as Python knows it, even if a user's class overrides `__name__`."""
    name: str = vars(type)["__name__"].__get__(type(error))
    return name


def describe(error: BaseException, otherwise: str = "") -> str:
    """An error in the user's code as one line: place, kind and message.  otherwise: the place if none is known."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration | StopAsyncIteration):
        error = error.__cause__  # Python replaced it when it passed through one of our generators
    said = one_line(text(error))
    if isinstance(error, SystemExit):
        said = "it ends the program"
    if isinstance(error, RecursionError):
        said = "it calls itself endlessly"
    where = place(error) or otherwise
    name = "" if isinstance(error, UserError) else one_line(kind(error))
    return ": ".join(filter(None, [where, name, said]))


def stack(error: BaseException) -> str:
    """An error's traceback for a log: printable, and limited in length."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > 2 * LINES:
        lines[LINES:-LINES] = [f"… {len(lines) - 2 * LINES} lines …"]
    return "\n".join(printable(line if len(line) <= LINE else f"{line[:LINE]}…") for line in lines) + "\n"


@contextmanager
def in_lines(others: bool = False) -> Iterator[None]:
    """Show warnings of the user's code, and errors that Python cannot raise (as in __del__), as one line each on
    stderr.

    others: warnings of all other code too.
    """
    unheard = sys.unraisablehook
    with warnings.catch_warnings():
        show = warnings.showwarning

        def warned(
            message: Any, category: type, filename: str, lineno: int, file: Any = None, line: Any = None
        ) -> None:
            if others or filename in PATHS or NEVER_AWAITED in str(message):
                print(f"warning: {one_line(f'{filename}:{lineno}: {category.__name__}: {message}')}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning, sys.unraisablehook = warned, say_unheard
        try:
            yield
        finally:
            sys.unraisablehook = unheard


def say_unheard(unraisable: Any) -> None:
    """Print an error that Python cannot raise as one line; for `sys.unraisablehook`."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt) and not theirs(unraisable.exc_value):
        interrupting.interrupt_again()
    elif unraisable.exc_value is not None:
        where = one_line(getattr(unraisable.object, "__qualname__", ""))
        what = f"{describe(unraisable.exc_value)}, ignored by Python" + (f" in {where}" if where else "")
        print(f"warning: {what}", file=sys.stderr)


@contextmanager
def reported(what: str, otherwise: str = "", passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """While the user's code is called: turn whatever it raises into a one-line UserError with their line.

    what: what went wrong then.  otherwise: the place if none is known.  passing: errors to raise unchanged.
    """
    try:
        with redirect_stdout(sys.stderr), process_exit.during(one_line(what)):  # what it prints is not a result
            yield
    except passing:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not theirs(error):
            raise
        raise UserError(f"{what}: {describe(error, otherwise)}") from error


@contextmanager
def attribute_errors(*passing: type[BaseException]) -> Iterator[None]:
    """While the user's code runs among ours: turn an error in a line of theirs into a UserError that names the line.

    passing: errors to raise unchanged, because they may be transient or are handled elsewhere.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if isinstance(error, (UserError, *passing)) or not theirs(error):
            raise
        raise UserError(describe(error)) from error
