"""Templates of commands, and values as programs read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import made

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


READ_ANEW = ["su root -c 'x {v}'", "ssh host x --v {v}", "su --command='x {v}'", "runuser u -lc 'x {v}'"]
READ_ANEW += ["nice fish -c 'x {v}'", "flock lock -c 'x {v}'", "env -S 'x {v}'", "ssh host sh -c 'x {v}'"]
READ_ANEW += ["sh -c 'x {v}'", "env X=1 bash -euo pipefail -c 'x {v}'", "/bin/bash --rcfile y -c -e 'x \"{v}\"'"]


@pytest.mark.parametrize("words", READ_ANEW)
def test_a_value_that_another_program_reads_anew_is_one_plain_word_or_refused(words: str, tmp_path: Path) -> None:
    split = command.split(words)
    assert command.fill(split, {"v": 1e-05})[-1] == split[-1].replace("{v}", "1e-05")
    for value in ("a b", "$HOME", "x;y"):
        with pytest.raises(UserError, match=r"^\{v\} must be one plain word for \w+, but is"):
            command.fill(split, {"v": value})
    for table in ("[space]\nv = ['a', 'a b']\n", "[defaults]\nv = 'a b'\n"):
        with pytest.raises(UserError, match=r"own.toml: command: \{v\} must be one plain word"):
            made(tmp_path, split, table)


@pytest.mark.parametrize(
    "words", ["flock lock x --v {v}", "env X=1 x {v}", "bash run.sh {v}", "x -c {v}", "echo '\"{v}\"'"]
)
def test_other_programs_get_any_value_as_one_word(words: str) -> None:
    assert command.fill(command.split(words), {"v": "a b"})[-1].strip('"') == "a b"


def test_text_is_split_as_a_shell_would() -> None:
    assert command.split("python 'my file.py' --a \"b c\"") == ["python", "my file.py", "--a", "b c"]
    assert command.names(["{a}", "x{b}-{a}", "{{c}}"]) == ["a", "b"]
