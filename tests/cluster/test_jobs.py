"""A search as a job of a real Ray cluster, as docs/how-to/jobs.md has it: sent with a user's file, stopped, resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import requests
from support.ray_head import Head, ray_head
from support.searches import rounds_by_configuration
from support.user_algorithms import fedproto_in
from support.waiting import wait_for

from fedtune.commands import search
from fedtune.runs import logs

WORDS = (
    "--clients 3 --rounds 40 --trials 2 --searcher random --scheduler none --max-concurrent 2 --set local_epochs=1 "
    "--final-seeds 0 --name run"
).split()
WAITS = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}})


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A cluster that asks for a token of its own."""
    with ray_head() as made:
        yield made


@pytest.mark.long
@pytest.mark.usefixtures("one_ray")
def test_a_job_runs_a_users_file_is_stopped_and_resumed_and_finds_what_a_search_here_finds(
    head: Head, tmp_path: Path
) -> None:
    """The folder has modules named like fedtune's own packages, which must hide none; ignored files stay here."""
    sent, storage, slow = tmp_path / "sent", tmp_path / "shared", tmp_path / "slow"
    sent.mkdir(), storage.mkdir(), slow.touch()
    fedproto_in(sent, slowed_by=slow)
    for name in ("analysis.py", "trainables.py"):
        (sent / name).write_text("raise ImportError('a module of the user that nobody asked for')\n")
    (sent / ".gitignore").write_text("ignored.txt\n")
    (sent / "ignored.txt").write_text("ignored")
    given = ["--algo", "mine.py", *WORDS, "--storage-path", str(storage), "--address", "auto"]
    begun = ["submit", "--no-wait", "--submission-id", "begun", "--working-dir", str(sent), "--runtime-env-json", WAITS]
    status, said = head.run(*begun, "--", "python", "-m", "fedtune.search", *given)
    assert status == 0, said
    wait_for(lambda: len(logs.logged(storage / "run")) == 2, 600)
    assert head.run("stop", "begun")[0] == 0
    (log,) = head.folder.glob("session_2*/logs/jobs/supervisor-begun.log")
    assert "terminated gracefully with SIGTERM" in log.read_text()  # not killed over the time that it took
    assert json.loads((storage / "run" / "run.json").read_text())["state"] == "interrupted"
    slow.unlink()
    status, said = head.run("submit", "--", "python", "-m", "fedtune", "resume", f"{storage}/run", "--address", "auto")
    assert status == 0 and "best of 2 trials" in said, said
    assert json.loads((storage / "run" / "run.json").read_text())["state"] == "finished"
    (there,) = head.folder.glob("session_2*/runtime_resources/working_dir_files/*/mine.py")
    assert not (there.parent / "ignored.txt").exists()

    assert search.main(["--algo", str(sent / "mine.py"), *WORDS, "--storage-path", str(tmp_path / "here")]) == 0
    found, expected = rounds_by_configuration(storage / "run"), rounds_by_configuration(tmp_path / "here" / "run")
    assert found.keys() == expected.keys() and len(expected) == 2
    for name, rows in expected.items():
        pd.testing.assert_frame_equal(found[name], rows, check_exact=True)


@pytest.mark.long
@pytest.mark.parametrize(("header", "status"), [({}, 401), ({"Authorization": f"Bearer {'0' * 64}"}, 403)])
def test_a_job_is_refused_without_a_token_and_with_a_wrong_one(head: Head, header: dict[str, str], status: int) -> None:
    """As docs/background/security.md has it, by whatever client."""
    job = {"entrypoint": f"touch {head.folder / 'ran'}"}
    assert requests.post(f"{head.address}/api/jobs/", json=job, headers=header, timeout=300).status_code == status
    assert not (head.folder / "ran").exists()
