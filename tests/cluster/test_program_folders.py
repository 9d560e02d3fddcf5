"""The folder of a program goes to a cluster with the job, and is put where all of its nodes see it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.commands import refusal

from fedtune.cluster import program_folders
from fedtune.commands import submit
from fedtune.core.errors import UserError
from fedtune.runs.files import SEARCH
from fedtune.studies.submission import Submission

FILE = """
command = "./own.sh {lr} {rounds}"
rounds = 3
seed = "none"
[metrics.val_acc]
[space]
lr = "0.001..0.1 log"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program's folder, which is the current one, with what is not sent."""
    folder = tmp_path / "own"
    for place in (".git", "env", "runs/old", "data", "__pycache__"):
        (folder / place).mkdir(parents=True)
    for name in (".git/config", "env/pyvenv.cfg", f"runs/old/{SEARCH}", "data/rows.csv", "__pycache__/own.pyc", ".env"):
        (folder / name).touch()
    (folder / "more").symlink_to("data")
    (folder / "own.sh").write_text("#!/bin/sh\n")
    (folder / "own.sh").chmod(0o755)
    (folder / "own.toml").write_text(FILE)
    monkeypatch.chdir(folder)
    return folder


def prepared(words: str, package: Path, in_place: bool = False) -> Submission:
    return submit.prepare(words.split(), None, None, package, in_place)


def test_its_folder_is_sent_and_runs_in_the_clusters_storage(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    job = prepared("--program own.toml --storage-path /shared --name run --trials 2", tmp_path / "job.zip")
    put, _, runs = job.entrypoint.partition(" && exec ")
    assert put == "python -m fedtune.cluster.program_folders given/programs /shared/run-programs"
    words = "--storage-path /shared --trials 2 --name run --algo /shared/run-programs/own/own.toml --address auto"
    assert runs == f"python -m fedtune search {words}"
    with zipfile.ZipFile(tmp_path / "job.zip") as package:
        modes = {i.filename: i.external_attr >> 16 for i in package.infolist() if i.filename.startswith("given/")}
    assert modes == {
        "given/programs/own/data/rows.csv": 0o644,
        "given/programs/own/own.sh": 0o755,
        "given/programs/own/own.toml": 0o644,
    }
    said = capsys.readouterr().err
    assert (
        f"{own} is sent: 3 files, which run in /shared/run-programs/own; without .env, .git, env, more, runs/old"
        in said
    )


def test_programs_of_a_comparison_share_a_folder_or_have_their_own(own: Path, tmp_path: Path) -> None:
    other = tmp_path / "else" / "own"
    other.mkdir(parents=True)
    for place in (own, other):
        (place / "own.sh").touch(mode=0o755)
        (place / f"of_{place.parent.name}.toml").write_text(FILE)
    algos = f"own.toml,of_{own.parent.name}.toml,{other}/of_else.toml"
    job = prepared(f"compare --algos {algos} --storage-path /shared --name both", tmp_path / "job.zip")
    place = "/shared/both-programs"
    there = f"{place}/own/own.toml,{place}/own/of_{own.parent.name}.toml,{place}/own-1/of_else.toml"
    assert job.arguments[job.arguments.index("--algos") + 1] == there


def test_nothing_is_sent_where_the_cluster_has_the_folder(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    job = prepared("--program own.toml --storage-path /shared --name run", tmp_path / "job.zip", in_place=True)
    assert job.entrypoint.startswith("python -m fedtune search") and f"--algo {own}/own.toml" in job.entrypoint
    assert not [name for name in zipfile.ZipFile(tmp_path / "job.zip").namelist() if name.startswith("given/")]
    assert f"note: own runs in {own}, which every node of the cluster must have" in capsys.readouterr().err


@pytest.mark.parametrize(("what", "limit"), [("0 MiB", ("LIMIT", 10)), ("2 files", ("MANY", 2))])
def test_a_large_folder_is_refused(own: Path, what: str, limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_folders, *limit)
    with pytest.raises(UserError, match=r"has more, up to .*and give --in-place before --"):
        program_folders.sent(own)


def test_a_program_that_runs_elsewhere_is_not_sent(own: Path, tmp_path: Path) -> None:
    (tmp_path / "own.sh").touch(mode=0o755)
    (own / "own.toml").write_text('folder = ".."\n' + FILE)
    with pytest.raises(UserError, match=f"own.toml runs in {tmp_path}; move the file there"):
        prepared("--program own.toml --storage-path /shared", tmp_path / "job.zip")
    assert prepared("--program own.toml --storage-path /shared", tmp_path / "job.zip", in_place=True)


def test_a_program_without_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for words in ("--program true", "--flower app"):
        line = refusal(submit.main, f"--address http://127.0.0.1:1 -- {words} --storage-path /shared", capsys)
        assert "a program is submitted by its program file, but got --" in line


def test_it_is_put_where_nothing_is_yet(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    to = tmp_path / "shared" / "run-programs"
    assert program_folders.main([str(own / "data"), str(to)]) == 0 and (to / "rows.csv").exists()
    assert program_folders.main([str(own / "data"), str(to)]) == 2
    assert f"needs a new folder, but {to} exists" in capsys.readouterr().err.replace("programs need a", "needs a")
