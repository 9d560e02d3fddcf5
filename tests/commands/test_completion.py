"""Completion in a shell: bash asks fedtune what may stand next, and nothing of it is loaded otherwise."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtune import __main__ as console
from fedtune.experiment import registry
from fedtune.experiment.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
ASK = """
eval "$(fedtune --print-completion bash)"
COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete fedtune
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with runs, and an environment in which `fedtune` is this one."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "fedtune"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedtune "$@"\n')
    script.chmod(0o755)
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "mine.py").touch()
    here = str(Path(console.__file__).parents[1])
    path = f"{script.parent}:{os.environ['PATH']}"
    return tmp_path, {**os.environ, "PATH": path, "PYTHONPATH": here, "PS1": "> ", "TERM": "dumb"}


def offered(line: str, place: tuple[Path, dict[str, str]]) -> set[str]:
    """What bash offers at the end of a line."""
    folder, environment = place
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


def test_bash_offers_what_may_stand_next(place):
    assert offered("fedtune ", place) == {*console.COMMANDS, "--help"}
    assert offered("fedtune re", place) == {name for name in console.COMMANDS if name.startswith("re")}
    assert offered("fedtune search --algo fedp", place) == {n for n in registry.names() if n.startswith("fedp")}
    assert offered("fedtune search --algo mi", place) == {"mine.py"}
    assert offered("fedtune search --scenario gfpl-m", place) == {n for n in SCENARIOS if n.startswith("gfpl-m")}
    assert offered("fedtune search --space w", place) == {"wide"}
    assert offered("fedtune search fedp", place) == {n for n in registry.names() if n.startswith("fedp")}
    assert offered("fedtune search --help-", place) == {"--help-all"}
    assert offered("fedtune search --optimizer ", place) >= {"sgd", "adam"}
    assert offered("fedtune compare --algos fedavg,fedre", place) == {"fedavg,fedrep"}
    assert offered("fedtune report ", place) >= {"runs/first", "runs/second"}
    assert offered("fedtune resume runs/se", place) == {"runs/second"}


def test_a_key_completes_it_in_a_terminal(place):
    folder, environment = place
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        os.write(terminal, b'bind "set bell-style none"; eval "$(fedtune --print-completion bash)"; echo rea""dy\n')
        seen = until(terminal, "ready")
        os.write(terminal, b"fedtune search --algo fedprot\t")
        assert "fedproto " in until(terminal, "fedproto "), seen
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def until(terminal: int, text: str) -> str:
    """What a terminal shows until it shows this."""
    seen, end = "", time.monotonic() + 300
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_evaluates_is_printed(shell, capsys):
    assert console.main(["--print-completion", shell]) == 0
    assert "fedtune" in capsys.readouterr().out


def test_another_shell_is_refused_in_one_line(capsys):
    assert console.main(["--print-completion", "cmd"]) == 2
    error = capsys.readouterr().err
    assert "'cmd'" in error and "bash, fish, zsh" in error and error.count("\n") == 1


def test_help_does_not_load_it():
    code = "import sys; from fedtune.__main__ import main; main(['--help']); print('argcomplete' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "False"
