"""What makes a function a command: a parser whose complaints are one line, and errors that are one line."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, Protocol

from fedtune.core import own_files
from fedtune.core.errors import Diverged, UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """One line on stderr, exit status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Command(Protocol):
    """A command's entry: arguments (default: the command line's) to exit status."""

    def __call__(self, argv: list[str] | None = None) -> int:
        """Run the command and return its exit status."""


def guarded(main: Command) -> Command:
    """A command whose UserError, or error in the user's own code, is one line and status 2; `--debug`: the stack."""

    def run(argv: list[str] | None = None) -> int:
        given = sys.argv[1:] if argv is None else argv
        try:
            return main(argv)
        except UserError as error:
            if "--debug" in given:
                raise
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        except Diverged as error:
            if "--debug" in given:
                raise
            print(f"stopped: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except Exception as error:  # in a line of the user's own code, which is not ours to show the stack of
            if "--debug" in given or own_files.place(error) is None:
                raise
            print(f"error: {own_files.describe(error)}", file=sys.stderr)
            return 2

    return run
