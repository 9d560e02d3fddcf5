"""Completion in a shell: bash asks fedtune what may stand next, and nothing of it is loaded otherwise."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedtune import __main__ as console
from fedtune.experiment import registry
from fedtune.experiment.scenarios import SCENARIOS

ASK = """
eval "$(fedtune --print-completion bash)"
while IFS= read -r line; do
    COMP_LINE=$line; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
    COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _python_argcomplete fedtune
    echo "${COMPREPLY[@]}"
done
"""


def beginning(text: str, names=()) -> set[str]:
    return {name for name in names or registry.names() if name.startswith(text)}


OFFERED = {  # a line -> what stands next
    "fedtune ": {*console.COMMANDS, "--help"},
    "fedtune re": beginning("re", console.COMMANDS),
    "fedtune search --algo fedp": beginning("fedp"),
    "fedtune search --algo mi": {"mine.py"},
    "fedtune search --scenario gfpl-m": beginning("gfpl-m", SCENARIOS),
    "fedtune search --space w": {"wide"},
    "fedtune search fedp": beginning("fedp"),
    "fedtune search --help-": {"--help-all"},
    "fedtune search --optimizer sg": {"sgd"},
    "fedtune compare --algos fedavg,fedre": {"fedavg,fedrep"},
    "fedtune report runs/": {"runs/first", "runs/second"},
    "fedtune resume runs/se": {"runs/second"},
}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_offers_what_may_stand_next(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "fedtune"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedtune "$@"\n')
    script.chmod(0o755)
    for name in ("first", "second", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in ("first", "second"):
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "mine.py").touch()
    here, path = Path(console.__file__).parents[1], f"{script.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ASK], cwd=tmp_path, env=os.environ | {"PATH": path, "PYTHONPATH": str(here)},
        input="".join(f"{line}\n" for line in OFFERED), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert dict(zip(OFFERED, map(set, map(str.split, done.stdout.splitlines())), strict=True)) == OFFERED


def test_what_a_shell_evaluates_is_printed_and_another_shell_is_refused_in_one_line(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert console.main(["--print-completion", shell]) == 0
        assert "fedtune" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        console.main(["--print-completion", "cmd"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and "'cmd'" in error and "'fish', 'zsh'" in error and error.count("\n") == 1


def test_help_does_not_load_it():
    code = "import sys; from fedtune.__main__ import main; main(['--help']); print('argcomplete' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "False"
