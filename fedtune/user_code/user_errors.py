"""What goes wrong in a user's own code: whether it is theirs, where in their file, and how it is said in a line."""

from __future__ import annotations

import dis
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType, TracebackType
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.terminal import LINE, one_line, printable
from fedtune.user_code import process_ends, user_imports

PATHS: set[str] = set()  # paths of all files of a user's code that this process knows
LINES = 100  # of a stack at each of its ends
NEVER_AWAITED = "was never awaited"  # what Python warns of a coroutine, at whatever line it is thrown away
_RAISE = dis.opmap["RAISE_VARARGS"]


def place(error: BaseException) -> str | None:
    """FILE:LINE of an error in the user's own code, the innermost one; None if no line of theirs is in its stack."""
    return user_imports.place(error, PATHS)


def line_now() -> str:
    """FILE:LINE of the user's own code that is being run; "" if none is."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_filename not in PATHS:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def theirs(error: BaseException) -> bool:
    """Whether the user's own code raised it, of whatever kind; Ctrl-C only where a line of theirs raises it."""
    if not isinstance(error, KeyboardInterrupt):
        return place(error) is not None
    at: TracebackType | None = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if at is None or at.tb_frame.f_code.co_filename not in PATHS:
        return False
    return at.tb_frame.f_code.co_code[at.tb_lasti] == _RAISE


def text(error: BaseException) -> str:
    """What an error says; nothing where it cannot even say that."""
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # of a class of the user's own
        return ""


def kind(error: BaseException) -> str:
    """The name of an error's class, as Python knows it, whatever a class of the user's own says."""
    name: str = vars(type)["__name__"].__get__(type(error))
    return name


def describe(error: BaseException, otherwise: str = "") -> str:
    """An error of the user's own code in a line: place, kind and message.  otherwise: the place if none is known."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration | StopAsyncIteration):
        error = error.__cause__  # Python replaced it, as it passed through a generator of ours
    said = one_line(text(error))
    if isinstance(error, SystemExit):
        said = "it ends the program"
    if isinstance(error, RecursionError):
        said = "it calls itself without end"
    where = place(error) or otherwise
    name = "" if isinstance(error, UserError) else one_line(kind(error))
    return ": ".join(filter(None, [where, name, said]))


def stack(error: BaseException) -> str:
    """An error's stack as a log shows it: each line as a terminal would, and not without end."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    if len(lines) > 2 * LINES:
        lines[LINES:-LINES] = [f"… {len(lines) - 2 * LINES} lines …"]
    return "\n".join(printable(line if len(line) <= LINE else f"{line[:LINE]}…") for line in lines) + "\n"


@contextmanager
def in_lines(others: bool = False) -> Iterator[None]:
    """Warnings of the user's code, and what it raises where nobody hears it, as in __del__, are a line on stderr each.

    others: warnings of everybody's code too.
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
    """What is raised where nobody hears it, in a line: for `sys.unraisablehook`."""
    if unraisable.exc_value is not None:
        where = one_line(getattr(unraisable.object, "__qualname__", ""))
        what = f"{describe(unraisable.exc_value)}, which nobody hears" + (f" in {where}" if where else "")
        print(f"warning: {what}", file=sys.stderr)


@contextmanager
def reported(what: str, otherwise: str = "", passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """While the user's code is called for one thing: whatever it raises is a UserError in one line, with their line.

    what: what then went wrong.  otherwise: the place if none is known.  passing: errors that go on as they are.
    """
    try:
        with redirect_stdout(sys.stderr), process_ends.during(one_line(what)):  # what it prints is no result
            yield
    except passing:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not theirs(error):
            raise
        raise UserError(f"{what}: {describe(error, otherwise)}") from error


@contextmanager
def attribute_errors(*passing: type[BaseException]) -> Iterator[None]:
    """While the user's code runs among ours: what goes wrong in a line of theirs is a UserError that names it.

    passing: errors that may heal by themselves, or that others deal with.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if isinstance(error, (UserError, *passing)) or not theirs(error):
            raise
        raise UserError(describe(error)) from error
