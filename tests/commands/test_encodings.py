"""Terminals that cannot write every character."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rows import first

PARTITION = "partition --dataset {tmp}/tea.csv --partition iid --clients 2"
ROWS = [(PARTITION, "C"), (PARTITION, "cp1252"), ("--help", "ascii"), (PARTITION, "ascii"), (PARTITION, "latin-1")]


@pytest.mark.parametrize(("command", "encoding"), first(ROWS, 2))
def test_what_a_terminal_cannot_write_is_replaced(command: str, encoding: str, tmp_path: Path) -> None:
    """In a batch job or a container without a UTF-8 locale, and where output is redirected on an old system."""
    rows = [f"{i % 7},{i % 2},{('茶 café', 'thé')[i % 3 == 0]}" for i in range(120)]
    (tmp_path / "tea.csv").write_text("\n".join(["a,b,y", *rows]), encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    wanted = plain if encoding == "C" else {"PYTHONIOENCODING": encoding}
    words = [sys.executable, "-m", "fedtune", *command.format(tmp=tmp_path).split()]
    alone = {"FEDTUNE_FORK": "no"}  # a fork has the streams of what it is forked from
    done = subprocess.run(words, env=os.environ | wanted | alone, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode("ascii" if encoding == "C" else encoding)
    if command.startswith("partition"):
        assert ("? caf" in said) and ("café" in said) == (encoding in ("cp1252", "latin-1"))
    else:
        assert "usage: fedtune COMMAND" in said


def test_no_number_loses_its_minus_where_that_cannot_be_written(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A question mark for − would turn a loss of 0.19 into a gain."""
    script = "from fedtune.__main__ import main; main(['--version']); print('a − b: −0.19 ± 0.70, ≤ 100 …  ü 茶')"
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=True)
    assert capfdbinary.readouterr().out.splitlines()[1] == b"a - b: -0.19 +- 0.70, <= 100 ...  ? ?"
