"""What --help shows: few lines, each with a word on its option, and everything behind two more options."""

import argparse
import importlib
import re
import shlex
from typing import Any

import pytest

from fedtune import __main__ as console
from fedtune.experiment.scenario import FLAGS, USES, Scenario, about
from fedtune.experiment.scenarios import DEFAULT, SCENARIOS
from fedtune.user_code import command_help

LONGEST = 48  # lines of --help: a screen
COLUMNS = 80
EVERY = [*console.COMMANDS, "reproduce", "tabulate", "simulate", "split_validation"]  # the last four: of analysis


def parser_of(command: str) -> argparse.ArgumentParser:
    return module_of(command).parser()


def module_of(command: str) -> Any:
    return importlib.import_module(f"fedtune.{'commands' if command in console.COMMANDS else 'analysis'}.{command}")


def shown(command: str, view: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        module_of(command).main([view])
    assert end.value.code == 0
    return capsys.readouterr().out


def options_of(page: str) -> list[str]:
    """The options that have a line of their own on a page, by their last spelling."""
    lines = [line.split()[:2] for line in page.splitlines() if line.startswith("  -")]
    return [words[1] if words[0].endswith(",") else words[0] for words in lines]


def every(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = [a for a in parser._actions if a.help is not argparse.SUPPRESS]
    inner = [c for a in found if isinstance(a, argparse._SubParsersAction) for c in a.choices.values()]
    return [*(a for a in found if not isinstance(a, argparse._SubParsersAction)), *(a for p in inner for a in every(p))]


@pytest.mark.parametrize("command", EVERY)
def test_help_is_a_screen_and_help_all_has_every_option(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    parser = parser_of(command)
    for action in every(parser):
        assert command_help.brief(action).strip(), action
        assert action.help.count("(") == action.help.count(")"), action.help
    page = shown(command, "--help", capsys)
    lines = page.splitlines()
    assert len(lines) <= LONGEST and max(map(len, lines)) <= COLUMNS
    flags = {a.option_strings[-1] for a in parser._actions if a.option_strings and a.help is not argparse.SUPPRESS}
    hidden = {a.option_strings[-1] for a in parser._actions if a.dest in parser.rare}
    assert flags - hidden == set(options_of(page))
    if hidden:  # then one line each, which says something
        options = [line for line in lines if line.startswith(" ") and "  fedtune " not in line]
        assert all(re.match(r"  (-|\[?[A-Z])\S.*\s\s+\S", line) for line in options), options
        assert "--help-all" in flags - hidden and flags == set(options_of(shown(command, "--help-all", capsys)))
    if command in console.COMMANDS:
        assert len(parser.examples) == 2 and page.endswith("".join(f"  {line}\n" for line in parser.examples))
        for line in parser.examples:
            words = shlex.split(line)
            parser.parse_args(words[words.index(command) + 1 :])


def test_every_field_is_an_option_or_named_for_set_with_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    page = re.sub(r"\n {28}", " ", shown("search", "--help-all", capsys))
    of_each = dict(re.findall(r"\n  (--[\w-]+|\w+=)(?: ?[A-Z]+)? +(.+)", page))
    for name, value in vars(SCENARIOS[DEFAULT]).items():
        spelling = f"--{name.replace('_', '-')}" if name in FLAGS else f"{name}="
        assert f"(default {value})" in of_each[spelling]


def test_a_field_is_told_with_the_partitions_that_use_it():
    assert about("shots") == "ways-shots: s̄, training rows of a client per class"
    assert about("owners").startswith("natural: ") and about("alpha").startswith("dirichlet, fedgen, quantity: ")
    assert about("val_share").startswith("share of a client's") and about("lr") == "the clients' learning rate"
    assert all(about(name) for names in USES.values() for name in names) and about("clients") in about("clients")
    assert {name for name in vars(Scenario()) if not about(name)} == set()


def test_commands_are_grouped_by_what_one_wants(capsys):
    assert console.main([]) == 2
    without = capsys.readouterr().out
    assert console.main(["--help"]) == 0
    page = capsys.readouterr().out
    assert sum(map(len, console.GROUPS.values())) == len(console.COMMANDS), "a command stands in one group"
    assert page == without
    lines = page.splitlines()
    for want, commands in console.GROUPS.items():
        at = lines.index(f"{want}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == list(commands)
    assert len(lines) <= 45 and max(map(len, lines)) <= COLUMNS
