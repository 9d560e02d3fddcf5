"""The console command: fedtune search | run | resume | list, …."""

from __future__ import annotations

import importlib
import os
import sys

from fedtune.core import interrupting
from fedtune.core.about import VERSION
from fedtune.core.errors import unknown
from fedtune.core.terminal import one_line, replace_what_cannot_be_written

GROUPS = {  # what one wants -> its commands
    "tune": {
        "search": "search the hyperparameters of an algorithm or of your program",
        "run": "train one configuration",
        "check": "check your algorithm, model or program before you tune it",
    },
    "compare": {"compare": "tune several algorithms equally and test which differ"},
    "look": {
        "list": "show algorithms, models, scenarios, data sets and metrics",
        "partition": "show which client holds what: table, picture, file",
        "privacy": "show what rounds cost in ε, or the noise for a target",
        "status": "show the progress of a search, comparison or reproduction",
        "watch": "show runs in a browser, while they run and afterwards",
        "report": "write the findings to one HTML page",
    },
    "continue": {
        "resume": "finish an interrupted run, or give a search more trials",
        "replay": "repeat a search's trials and compare every number",
    },
}
COMMANDS = {name: what for of in GROUPS.values() for name, what in of.items()}


def main(argv: list[str] | None = None) -> int:
    """Hand over to the command named first."""
    if argv is not None:
        return _dispatch(argv)
    with interrupting.terminable(to_the_end=True):  # a process of our own, from its first line on
        try:
            return _dispatch(None)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return interrupting.STATUS


def _dispatch(argv: list[str] | None) -> int:
    args = sys.argv[1:] if argv is None else argv
    replace_what_cannot_be_written()
    if argv is None and "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand next
        from fedtune.commands import completion

        completion.answer(COMMANDS)
    if not args or args[0] in ("-h", "--help"):
        print("usage: fedtune COMMAND …")
        for want, of in GROUPS.items():
            print("\n".join([f"\n{want}:", *(f"  {name:16} {what}" for name, what in of.items())]))
        print("\nfor details: fedtune COMMAND --help")
        print("for completion with TAB: fedtune --print-completion bash|zsh|fish")
        print("\nexamples:\n  fedtune search gfpl --trials 16\n  fedtune report runs/first")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"fedtune {VERSION}")
        return 0
    if args[0] == "--print-completion":
        from fedtune.commands import completion

        return completion.main(args[1:])
    if args[0] not in COMMANDS:
        print(f"error: {one_line(unknown('command', args[0], COMMANDS, 'fedtune --help'))}", file=sys.stderr)
        return 2
    return importlib.import_module(f"fedtune.commands.{args[0].replace('-', '_')}").main(args[1:])


if __name__ == "__main__":
    sys.exit(main())
