"""What --help shows: the options that most people need, a line each; --help-scenario and --help-all show the others.

A help text is written so that what stands before its first "; " says enough: --help shows that much.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

INDENT = 28  # columns before a help text
WIDEST = 100  # columns
HELP = "help"  # the heading of what shows help
VIEWS = {
    "-h": "",
    "--help-scenario": "the options of the scenario: data, clients, training",
    "--help-all": "every option, fully explained",
}


@dataclass
class Views:
    """Which options a parser's --help leaves out, and where --help-scenario shows them."""

    rare: set[str] = field(default_factory=set)  # shown by --help-all only, or by --help-scenario
    sections: dict[str, str] = field(default_factory=dict)  # an option of the scenario -> its heading there

    @property
    def flags(self) -> list[str]:
        """The options that show more, of those that show anything more."""
        return ["--help-scenario"] * bool(self.sections) + ["--help-all"] * bool(self.rare)


class Show(argparse.Action):
    """Print one of the views and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Show what this option is named after."""
        print(page(parser, self.option_strings[0]), end="")
        parser.exit()


def page(parser: argparse.ArgumentParser, view: str = "") -> str:
    """A parser's help.  view: the option that asked for more of it."""
    views = getattr(parser, "views", None) or Views()
    width = min(shutil.get_terminal_size().columns, WIDEST)
    usage = parser.usage or " ".join([parser.prog, *_required(parser), "[options]"])
    parts = [f"usage: {usage % {'prog': parser.prog}}", _filled(parser.description or "", width)]
    view = view or ("" if views.rare else "--help-all")  # where nothing is left out, --help shows whole texts
    for heading, actions in _headings(parser, views, view):
        lines = [line for action in actions for line in _lines(action, width, view)]
        parts.append("\n".join([f"{heading}:", *lines]))
    parts += [_filled(parser.epilog or "", width)] if view else []
    return "\n\n".join(filter(None, parts)) + "\n"


def brief(action: argparse.Action) -> str:
    """As much of an option's help as --help shows."""
    return (action.help or "").replace("%%", "%").partition("; ")[0]


def spelled(action: argparse.Action) -> str:
    """An option with its value, as it is typed."""
    flags = ", ".join(action.option_strings)
    if action.nargs == 0:
        return flags
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = str(value)
    if action.nargs == "?":
        value = f"[{value}]"
    return f"{flags} {value}".strip() + " …" * (action.nargs == "+")


def _headings(parser: argparse.ArgumentParser, views: Views, view: str) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Each heading with its options: positional ones first, the options that show help last."""
    every = [a for a in parser._actions if a.help is not argparse.SUPPRESS]
    if view == "--help-scenario":
        for section in dict.fromkeys(views.sections.values()):
            yield section, [a for a in every if views.sections.get(a.dest) == section]
        return
    shows = [a for flag in VIEWS for a in every if flag in a.option_strings]
    own, options, *named = parser._action_groups  # argparse's two, then those with a heading
    titles = {own: "arguments", options: "other options" if named else "options"}
    for group in (own, *named, options):
        mine = [a for a in group._group_actions if a in every and a not in shows]
        if found := [a for a in mine if view or a.dest not in views.rare]:
            yield titles.get(group, str(group.title)), found
    yield HELP, shows


def _required(parser: argparse.ArgumentParser) -> Iterable[str]:
    """What a command line must have, as its usage shows it."""
    for action in parser._actions:
        if not action.option_strings:
            yield f"[{text}]" if action.nargs == "?" and (text := spelled(action).strip("[]")) else spelled(action)
        elif action.required:
            yield spelled(action)


def _lines(action: argparse.Action, width: int, view: str) -> list[str]:
    """An option's lines: one in --help, elsewhere as many as its text needs; a command's own commands, a line each."""
    if isinstance(action, argparse._SubParsersAction):
        return [f"  {a.dest:<{INDENT - 4}}  {a.help}" for a in action._get_subactions()]
    head = f"  {spelled(action):<{INDENT - 4}}  "
    if not view:
        return [head + brief(action)]
    text = (action.help or "").replace("%%", "%") if view == "--help-all" else brief(action)
    first = [] if len(head) == INDENT else [head.rstrip()]
    lines = textwrap.wrap(text, width - INDENT, break_on_hyphens=False) or [""]
    return first + [(" " * INDENT if first or i else head) + line for i, line in enumerate(lines)]


def _filled(text: str, width: int) -> str:
    """A description in lines."""
    return "\n".join(textwrap.fill(" ".join(part.split()), width) for part in text.split("\n\n"))
