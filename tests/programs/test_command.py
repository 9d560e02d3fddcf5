"""Templates of commands, and values as programs read them."""

from __future__ import annotations

import subprocess

import pytest

from fedtune.core.errors import UserError
from fedtune.programs import command

VALUES = {
    "lr": 1e-05,
    "lam": 0.1 + 0.2,
    "epochs": 3,
    "one": 1.0,
    "flag": True,
    "off": False,
    "text": "a b'c",
    "none": "",
}


def test_values_are_written_as_they_are_declared() -> None:
    words = ["x", "--lr={lr}", "{lam}", "{epochs}", "{one}", "{flag}", "{off}", "{text}", "{{lr}}"]
    filled = command.fill(words, VALUES)
    assert filled == ["x", "--lr=1e-05", "0.30000000000000004", "3", "1.0", "true", "false", "a b'c", "{lr}"]
    assert float(filled[2]) == VALUES["lam"]


def test_a_word_that_is_only_an_empty_value_is_left_out() -> None:
    assert command.fill(["x", "{none}", "--a={none}", ""], VALUES) == ["x", "--a=", ""]


def test_values_in_the_script_of_a_shell_are_quoted() -> None:
    for shell in (["sh", "-c"], ["bash", "-e", "-c"], ["env", "A=1", "/bin/sh", "-ec"]):
        filled = command.fill([*shell, "printf %s {text} | cat; printf %s '{epochs}'"], VALUES)
        assert subprocess.run(filled, capture_output=True, text=True, check=True).stdout == "a b'c3"


def test_a_value_that_quotes_around_it_would_spoil_is_refused() -> None:
    with pytest.raises(UserError, match=r"\{text\} must stand without quotes"):
        command.fill(["sh", "-c", 'echo "{text}"'], VALUES)
    assert command.fill(["echo", '"{text}"'], VALUES) == ["echo", '"a b\'c"']


def test_text_is_split_as_a_shell_would() -> None:
    assert command.split("python 'my file.py' --a \"b c\"") == ["python", "my file.py", "--a", "b c"]
    assert command.names(["{a}", "x{b}-{a}", "{{c}}"]) == ["a", "b"]
