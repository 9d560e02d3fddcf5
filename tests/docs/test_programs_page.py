"""The pages on programs: what a program file may hold say, and examples that are ones."""

import re
import sys
from pathlib import Path

from fedtune.programs import command, metric, program_file
from fedtune.programs.run import ProgramRun

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorials" / "program.md").read_text() + (DOCS / "reference" / "program-file.md").read_text()


def cells(title: str) -> list[str]:
    """The names in the first column of the first table after this heading of a column."""
    table = PAGE.split(f"| {title} |")[1].split("\n\n")[0]
    return [name for cell in re.findall(r"^\| ([^|]+) \|", table, re.M) for name in re.findall(r"`([^`]+)`", cell)]


def test_every_key_is_described() -> None:
    assert sorted(cells("key")) == sorted(program_file.KEYS)
    assert sorted(cells("key of a metric")) == sorted(metric.KEYS)
    assert sorted(cells("name")) == sorted(f"{{{name}}}" for name in command.OWN)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_its_example_is_a_program_file(tmp_path: Path) -> None:
    (tmp_path / "PFLlib" / "system").mkdir(parents=True)
    (tmp_path / "PFLlib" / "system" / "main.py").touch()
    example = blocks("toml")[2].replace("python main", "python3 main")
    program = program_file.parse(example.encode(), "page.toml", tmp_path, "page")
    assert program.selectable() == {"val_acc": "max"} and program.checking().reported == ("test_acc",)


def test_its_first_example_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(blocks("python")[0])
    example = blocks("toml")[0].replace("python train.py", f"{sys.executable} -S train.py")
    program = program_file.parse(example.encode(), "own.toml", tmp_path, "own")
    assert program.selectable() == {"val_acc": "max"} and program.reported == ("test_acc",)
    run = ProgramRun(program, {"lr": 0.1}, 3, tmp_path / "trial")
    rows = [run.step() for _ in range(program.rounds)]
    assert rows[-1]["val_acc"] > rows[0]["val_acc"] and rows[-1]["test_acc"] > 0.8


def test_its_ranges_are_taken(tmp_path: Path) -> None:
    lines = [line for line in cells("you write") if " = " in line]
    names = [line.split(" ")[0] for line in lines]
    command = " ".join(["echo", *(f"{{{name}}}" for name in names)])
    text = f"command = '{command}'\nrounds = 1\n[metrics.acc]\n[space]\n" + "\n".join(lines)
    assert list(program_file.parse(text.encode(), "page.toml", tmp_path, "page").searched) == names
