"""What commands share: a parser with one-line error messages, and a line for every other error."""

from __future__ import annotations

import argparse
import errno
import os
import re
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from fedtune.core import terminal
from fedtune.core.errors import Diverged, UserError, unknown
from fedtune.core.terminal import one_line
from fedtune.user_code import command_help, user_errors

BUG = 70  # exit status of an unexpected error (EX_SOFTWARE in sysexits.h)
# of the machine, reported without a path
OF_MACHINE = {errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line error messages and a short --help; no option may be abbreviated or empty."""

    def __init__(self, examples: Sequence[str] = (), **kwargs: Any) -> None:
        """As argparse's, with no option left out of --help.  examples: command lines, at the end of --help."""
        super().__init__(allow_abbrev=False, **kwargs)
        self.examples = examples
        self.rare: set[str] = set()  # options that only --help-all shows
        self.settable: list[argparse.Action] = []  # what --set takes besides hyperparameters, for --help-all

    def leave_out(self, action: argparse.Action) -> None:
        """Show an option by --help-all only."""
        self.rare.add(action.dest)
        if command_help.ALL not in self._option_string_actions:
            words = "every option, fully explained"
            self.add_argument(
                command_help.ALL, action=command_help.ShowAll, nargs=0, default=argparse.SUPPRESS, help=words
            )

    def format_help(self) -> str:
        """What --help prints."""
        return command_help.page(self)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The arguments as attributes; ends the process if they are invalid."""
        words = sys.argv[1:] if args is None else list(args)
        known, end = self._flags(), words.index("--") if "--" in words else len(words)
        for i, (before, word) in enumerate(zip(["", *words], words, strict=False)):
            flag = word.partition("=")[0]
            is_option = re.fullmatch(r"--[\w-]+", flag) or (
                re.fullmatch(r"-[A-Za-z][\w-]+", word) and before not in known
            )
            if is_option and flag not in known and i < end:
                if (name := flag.strip("-").replace("-", "_")) in {a.dest for a in self.settable}:
                    self.error(f"{name} has no option of its own; give --set {name}=VALUE")
                self.error(str(unknown("option", flag, known, f"{self.prog} --help-all" * ("--help-all" in known))))
            flag, _, value = word.partition("=") if word.startswith("--") and "=" in word else (before, "", word)
            if value == "" and word != "--":
                what = f"argument {flag}" if flag.startswith("-") else "an argument"
                self.error(f"{what} must not be empty; leave it out for the default")
            if value == "--" and word != "--":  # argparse would give it on as an empty list
                self.error(f"argument {flag} must be a value, but got --; give another")
        return super().parse_args(args, namespace)

    def _flags(self) -> set[str]:
        """Every option, also of the commands below this one."""
        below = [p for a in self._actions if isinstance(a, argparse._SubParsersAction) for p in a.choices.values()]
        return {*self._option_string_actions, *(flag for p in below for flag in p._option_string_actions)}

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        self.exit(2, f"{self.prog}: {one_line(message)}; see {self.prog} --help\n")


def require_new(option: str, file: Path | None, ending: str = "") -> None:
    """UserError or OSError unless a new file can be created there: tested now, as after hours it is too late."""
    if file is None:
        return
    there = os.path.lexists(file) or not file.absolute().parent.is_dir()
    if there or (ending and file.suffix != ending):
        what = f"a new file *{ending}" if ending else "a new file"
        raise UserError(f"{option} needs {what} in a folder that exists, but got {file}; give another")
    file.open("x").close()
    file.unlink()


class Command(Protocol):
    """A command's entry point: arguments (default: those of the command line) to exit status."""

    def __call__(self, argv: list[str] | None = None) -> int:
        """Run the command and return its exit status."""


def guarded(main: Command) -> Command:
    """Wrap a command so that every error is one line: status 2 if the user can fix it, 70 for a bug.

    Below that of an error in the user's own Python stands its traceback, and below a bug its stack.  `--debug` shows
    the stack of each.
    """

    def run(argv: list[str] | None = None) -> int:
        given = sys.argv[1:] if argv is None else argv
        terminal.replace_what_cannot_be_written()
        _known_as_driver()
        try:
            os.getcwd()  # libraries abort without one
            return main(argv)
        except KeyboardInterrupt as error:  # it may hold what to do next
            print("; ".join(["interrupted", *map(str, error.args)]), file=sys.stderr)
            return 130
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                return 1
            if "--debug" in given:
                raise
            status, line = _status_and_line(error)
            below = user_errors.stack(error) if status == BUG else user_errors.theirs_on(error)
            print(f"{line}\n{below}", end="", file=sys.stderr)
            return status

    return run


def _known_as_driver() -> None:
    """Tell Ray, which is imported later, that this process is not one of its workers.

    Ray takes a process whose parent is process 1 (in a container, or after a terminal was closed) for a worker, and
    ends it at once when its raylet dies.  The raylet tells real workers who their parent is.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_RAYLET_PID", str(os.getpid()))


def _reader_is_gone() -> bool:
    """Whether nobody reads our output any more, as after `| head`; if so, further output is discarded."""
    try:
        out = sys.stdout.fileno()
    except OSError:  # a notebook's, or one that a caller collects
        return False
    poll = select.poll()
    poll.register(out, 0)  # to flush is no test: after a large text that failed nothing may be left to write
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return gone


def _status_and_line(error: Exception) -> tuple[int, str]:
    """The exit status and the one-line message of an error."""
    if isinstance(error, Diverged):
        return 1, f"stopped: {one_line(error)}"
    if isinstance(error, UserError):
        return 2, f"error: {one_line(error)}"
    if user_errors.theirs(error):
        return 2, f"error: {one_line(user_errors.describe(error))}"
    if isinstance(error, OSError) and (error.filename is not None or error.errno in OF_MACHINE):
        named = " and ".join(os.fsdecode(f) for f in (error.filename, error.filename2) if isinstance(f, str | bytes))
        about = f"{named} cannot be used: " if named else ""
        return 2, f"error: {one_line(f'{about}{error.strerror}')}; fix it, or give another"
    what = f"{user_errors.kind(error)}: {user_errors.text(error)[:200] or 'no details'}"
    return BUG, (
        f"error: this is a bug in fedtune, {one_line(what)}; please report it with the command and the stack below; "
        "results so far are in the study's folder"
    )
