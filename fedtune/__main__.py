"""The console command: fedtune search | resume | run | list, …."""

from __future__ import annotations

import importlib
import sys

from fedtune.core.about import VERSION
from fedtune.core.errors import unknown
from fedtune.core.terminal import one_line

COMMANDS = {
    "search": "search an algorithm's hyperparameters",
    "extend": "give a finished search more trials or rounds",
    "resume": "finish an interrupted run",
    "replay": "repeat a search's trials and compare every number",
    "compare": "tune several algorithms with equal budgets and test which differ",
    "reproduce": "run a paper's table or figure",
    "tabulate": "train a whole grid once and write a table",
    "simulate": "simulate searches on such a table",
    "run": "train one configuration",
    "split-validation": "set validation rows aside in a folder of PFLlib's",
    "partition": "show which client holds what: table, picture, file",
    "check": "run the conformance checks on your algorithm or model",
    "status": "show the progress of a search, comparison or reproduction",
    "report": "write the findings on one HTML page",
    "submit": "run a search, comparison, … as a job of a Ray cluster",
    "jobs": "list, follow and stop submitted jobs",
    "list": "show algorithms, spaces, scenarios and data sets",
}


def main(argv: list[str] | None = None) -> int:
    """Hand over to the command named first."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print("usage: fedtune COMMAND …\n")
        print("\n".join(f"  {name:16} {what}" for name, what in COMMANDS.items()))
        print("\nfor details: fedtune COMMAND --help")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"fedtune {VERSION}")
        return 0
    if args[0] not in COMMANDS:
        print(f"error: {one_line(unknown('command', args[0], COMMANDS, 'fedtune --help'))}", file=sys.stderr)
        return 2
    if argv is None:  # a process of our own: to its very end nobody's code prints a stack, and a crash is no silence
        from fedtune.user_code import process_exit, user_errors

        sys.unraisablehook = user_errors.say_unheard
        process_exit.watch(user_errors.PATHS)
    return importlib.import_module(f"fedtune.commands.{args[0].replace('-', '_')}").main(args[1:])


if __name__ == "__main__":
    sys.exit(main())
