"""Templates of commands, and values as programs read them."""

from __future__ import annotations

import subprocess
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


OPTIONS = [
    "-c",
    "-e -c",
    "-ec",
    "--norc -c",
    "-o pipefail -c",
    "-euo pipefail -c",
    "--rcfile x -c",
    "-c -e",
    "+e -c --",
]


@pytest.mark.parametrize("before", ["", "env X=1", "nice", "timeout 60", "env -i nice -n 5"])
@pytest.mark.parametrize("options", OPTIONS)
def test_values_are_quoted_in_a_shells_script(before: str, options: str) -> None:
    """Each is one word, and nothing in it is read by the shell."""
    values = VALUES | {"home": "$HOME; `ls`", "two": "x\ny"}
    script = "printf '%s|' {text} {epochs} {home} {two} x{text} {none}"
    filled = command.fill([*f"{before} bash {options}".split(), script], values)
    run = subprocess.run(filled, capture_output=True, text=True, check=True)
    assert run.stdout == "a b'c|3|$HOME; `ls`|x\ny|xa b'c||" and not run.stderr


def test_a_shells_own_arguments_come_first() -> None:
    filled = command.fill(["sh", "-c", "printf '%s|' $0 $1 {text}", "x", "{none}", "{epochs}"], VALUES)
    assert subprocess.run(filled, capture_output=True, text=True).stdout == "x|3|a b'c|"
    plain = ["sh", "-c", "echo '{epochs}' {lr}"]  # what means nothing to a shell stands where it was
    assert command.fill(plain, VALUES) == ["sh", "-c", "echo '3' 1e-05"]
    assert command.fill(["bash", "-o", "pipefail", "run.sh", "-c", "{text}"], VALUES)[-1] == "a b'c"


@pytest.mark.parametrize(
    "script",
    ['echo "{text}"', "echo '{text}'", 'echo "$(ls {text})"', "echo `ls {text}`", "cat <<E\n{text}\nE", "eval x {text}"]
    + ["ssh host x {text}", 'sh -c "x {text}"'],
)
def test_a_value_that_a_script_would_spoil_is_refused(script: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\{text\} must stand without quotes"):
        command.fill(["sh", "-c", script], VALUES)
    with pytest.raises(UserError, match=r"own.toml:1: command: \{text\} must stand without quotes"):
        made(tmp_path, ["sh", "-c", script], "[space]\ntext = ['a', 'a b']\n")


READ_ANEW = ["su root -c 'x {v}'", "ssh host x --v {v}", "su --command='x {v}'", "runuser u -lc 'x {v}'"]
READ_ANEW += ["nice fish -c 'x {v}'", "flock lock -c 'x {v}'", "env -S 'x {v}'", "ssh host sh -c 'x {v}'"]


@pytest.mark.parametrize("words", READ_ANEW)
def test_a_value_that_another_program_reads_anew_is_one_plain_word_or_refused(words: str, tmp_path: Path) -> None:
    split = command.split(words)
    assert command.fill(split, {"v": 1e-05})[-1] == split[-1].replace("{v}", "1e-05")
    for value in ("a b", "$HOME", "x;y"):
        with pytest.raises(UserError, match=r"^\{v\} must be one plain word for \w+, which has it read anew"):
            command.fill(split, {"v": value})
    for table in ("[space]\nv = ['a', 'a b']\n", "[defaults]\nv = 'a b'\n"):
        with pytest.raises(UserError, match=r"own.toml:1: command: \{v\} must be one plain word"):
            made(tmp_path, split, table)


@pytest.mark.parametrize("words", ["flock lock bash -c 'x {v}'", "flock lock x --v {v}", "env -i bash -c 'x {v}'"])
def test_a_program_before_another_reads_none_of_its_values(words: str) -> None:
    assert "a b" in " ".join(command.fill(command.split(words), {"v": "a b"}))


@pytest.mark.parametrize("script", ["shift; {}", "f() {{{{ shift; {}; }}}}; f y", 'printf "$1|"; {}', "echo -n $({})"])
def test_a_script_may_use_its_arguments_and_other_commands(script: str) -> None:
    for shell in ("sh", "bash"):
        words = [shell, "-c", script.format("printf '%s|' {text} {two}"), "x", "y"]
        filled = command.fill(words, VALUES | {"two": "$1 z"})
        done = subprocess.run(filled, capture_output=True, text=True, check=True)
        assert done.stdout.removeprefix("y|") == "a b'c|$1 z|"


def test_braces_of_a_program_that_is_no_shell_stand_where_they_are() -> None:
    assert command.fill(["echo", '"{text}"'], VALUES) == ["echo", '"a b\'c"']


def test_text_is_split_as_a_shell_would() -> None:
    assert command.split("python 'my file.py' --a \"b c\"") == ["python", "my file.py", "--a", "b c"]
    assert command.names(["{a}", "x{b}-{a}", "{{c}}"]) == ["a", "b"]
