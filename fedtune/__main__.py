"""The console command: fedtune search | resume | run | list, …."""

from __future__ import annotations

import importlib
import sys

from fedtune.core.about import VERSION
from fedtune.core.errors import unknown
from fedtune.core.terminal import one_line

COMMANDS = {
    "search": "search an algorithm's hyperparameters",
    "extend": "more trials or rounds for a search that is over",
    "resume": "resume a search that was interrupted",
    "replay": "run a search's trials again and compare every number",
    "compare": "tune several algorithms alike and test which differ",
    "reproduce": "run a paper's table or figure",
    "tabulate": "train a whole grid once, as a table",
    "simulate": "what searches would have found on such a table",
    "run": "train one configuration",
    "partition": "who holds what: table, picture, file",
    "check": "whether your algorithm or model passes all checks",
    "status": "how a search stands",
    "report": "one HTML page on what searches found",
    "submit": "search on a Ray cluster, as a job",
    "jobs": "list, follow and stop what was submitted",
    "list": "show algorithms, spaces, scenarios and data sets",
}


def main(argv: list[str] | None = None) -> int:
    """Hand over to the command named first."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print("usage: fedtune COMMAND …\n")
        print("\n".join(f"  {name:9} {what}" for name, what in COMMANDS.items()))
        print("\nfedtune COMMAND --help says more")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"fedtune {VERSION}")
        return 0
    if args[0] not in COMMANDS:
        print(f"error: {one_line(unknown('command', args[0], COMMANDS, 'fedtune --help'))}", file=sys.stderr)
        return 2
    if argv is None:  # a process of our own: to its very end nobody's code prints a stack, and a crash is no silence
        from fedtune.user_code import process_ends, user_errors

        sys.unraisablehook = user_errors.say_unheard
        process_ends.watch(user_errors.PATHS)
    return importlib.import_module(f"fedtune.commands.{args[0]}").main(args[1:])


if __name__ == "__main__":
    sys.exit(main())
