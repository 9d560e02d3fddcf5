"""What --help shows: the options that most people need, a line each, and two examples; --help-all shows every option.

A help text is written so that what stands before its first "; " says enough: --help shows that much.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

INDENT = 28  # columns before a help text
WIDEST = 100  # columns
ALL = "--help-all"


class ShowAll(argparse.Action):
    """Print every option and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Show them."""
        print(page(parser, whole=True), end="")
        parser.exit()


def page(parser: Any, whole: bool = False) -> str:
    """A parser's help.  whole: with what is rarely needed, and with whole texts, as where nothing is left out."""
    width, whole = min(shutil.get_terminal_size().columns, WIDEST), whole or not parser.rare
    required = [spelled(a) for a in parser._actions if not a.option_strings or a.required]
    usage = parser.usage or " ".join([parser.prog, *required, "[options]"])
    parts = [f"usage: {usage % {'prog': parser.prog}}", textwrap.fill(parser.description or "", width)]
    for heading, actions in _headings(parser, whole):
        lines = [line for action in actions for line in _lines(action, width, whole)]
        parts.append("\n".join([f"{heading}:", *lines]))
    parts += ["\n".join(["examples:", *(f"  {line}" for line in parser.examples)])] if parser.examples else []
    return "\n\n".join(filter(None, parts)) + "\n"


def brief(action: argparse.Action) -> str:
    """As much of an option's help as --help shows."""
    return (action.help or "").replace("%%", "%").partition("; ")[0]


def spelled(action: argparse.Action) -> str:
    """An option with its value, as it is typed."""
    flags = ", ".join(action.option_strings)
    if action.nargs == 0:
        return flags
    value = str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper()))
    value = f"[{value}]" if action.nargs in ("?", "*") else value
    return f"{flags} {value}".strip() + " …" * (action.nargs in ("+", "*"))


def _headings(parser: Any, whole: bool) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Each heading with its options: positional ones first, the options that show help last."""
    shows = [a for a in parser._actions if {"--help", ALL} & {*a.option_strings}]
    own, options, *named = parser._action_groups  # argparse's two, then those with a heading
    titles = {own: "arguments", options: "other options" if named else "options"}
    for group in (own, *named, options):
        mine = [a for a in group._group_actions if a.help is not argparse.SUPPRESS and a not in shows]
        if found := [a for a in mine if whole or a.dest not in parser.rare]:
            yield titles.get(group, str(group.title)), found
    if whole and parser.settable:
        yield "other fields of the scenario, for --set NAME=VALUE", parser.settable
    yield "help", shows


def _lines(action: argparse.Action, width: int, whole: bool) -> list[str]:
    """An option's lines: one, or as many as its whole text needs."""
    head = f"  {spelled(action):<{INDENT - 4}}  "
    if not whole:
        return [head + brief(action)]
    first = [] if len(head) == INDENT else [head.rstrip()]
    text = (action.help or "").replace("%%", "%")
    lines = textwrap.wrap(text, width - INDENT, break_on_hyphens=False) or [""]
    return first + [(" " * INDENT if first or i else head) + line for i, line in enumerate(lines)]
