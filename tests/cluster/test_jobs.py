"""A search as a job of a real Ray cluster: sent, followed, left alone, stopped, gone on with; and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import requests
from ray.job_submission import JobStatus
from support.commands import refusal
from support.data_files import idx
from support.ray_head import Head, ray_head
from support.searches import rounds_by_configuration
from support.user_algorithms import fedproto_in, gone
from support.waiting import wait_for

from fedtune.cluster import jobs, package
from fedtune.commands import jobs as jobs_command
from fedtune.commands import search, submit
from fedtune.runs import logs

TINY = (
    "--algo fedavg --clients 4 --rounds 2 --trials 2 --max-concurrent 1 --scheduler none --searcher random "
    "--final-seeds 0 --no-dashboard"
)
LONG = (
    "--clients 3 --rounds 16 --trials 2 --searcher random --scheduler none --max-concurrent 2 "
    "--set local_epochs=1 --set lr=0.02 --set momentum=0.5 --final-seeds 0"
)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A cluster that asks for a token of its own."""
    with ray_head() as made:
        yield made


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space's file, whose name is that of a module: it must hide none."""
    file = tmp_path_factory.mktemp("own") / "random.py"
    file.write_text("from ray import tune\nSPACE = {'lr': tune.loguniform(0.01, 0.1)}")
    return file


def tiny_mnist(root: Path) -> list[Path]:
    """MNIST's four files with a few rows, and the archives that torchvision leaves beside them."""
    folder, rng = root / "MNIST" / "raw", np.random.default_rng(0)
    folder.mkdir(parents=True)
    files = []
    for part, rows in (("train", 400), ("t10k", 100)):
        images, labels = rng.integers(0, 256, (rows, 28, 28)), np.arange(rows) % 10
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            files.append(folder / f"{part}-{what}-ubyte")
            files[-1].write_bytes(idx(array))
            Path(f"{files[-1]}.gz").write_bytes(b"packed")
    return files


MNIST = "--dataset mnist --partition iid --clients 4 --model mlp "


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST of a few rows."""
    folder = tmp_path_factory.mktemp("data")
    tiny_mnist(folder)
    return folder


@pytest.fixture(scope="module")
def sent(head: Head, space: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A tiny search that was submitted with its data and followed to its end: the storage folder, and what was said."""
    storage = tmp_path_factory.mktemp("sent")
    words = [*TINY.split(), *MNIST.split(), "--space", str(space), "--storage-path", str(storage), "--name", "run"]
    given = ["--name", "sent", "--data", str(data)]
    status, out, err = head.run("submit", *given, "--", *words, SOMEBODYS_PASSWORD="hunter2")
    assert status == 0, out + err
    return storage, out


@pytest.mark.usefixtures("one_ray")
def test_a_submitted_search_is_followed_and_finds_what_it_finds_here(
    head: Head, sent: tuple[Path, str], space: Path, data: Path, tmp_path: Path
) -> None:
    storage, said = sent
    assert said.startswith(f"job: sent\nrun on the cluster: {storage}/run\n")
    assert "2 trials of up to 2 rounds" in said and "2/2 " in said and said.endswith("\nsent: succeeded\n")
    words = [*TINY.split(), *MNIST.split(), "--space", str(space), "--storage-path", str(tmp_path), "--name", "run"]
    assert search.main([*words, "--data-dir", str(data)]) == 0
    there, here = rounds_by_configuration(storage / "run"), rounds_by_configuration(tmp_path / "run")
    assert there.keys() == here.keys() and len(here) == 2
    for name, rows in here.items():
        pd.testing.assert_frame_equal(there[name], rows, check_exact=True)
    record = json.loads((storage / "run" / "run.json").read_text())
    assert record["scenario"]["dataset"] == "mnist"
    assert record["state"] == "finished" and record["git_commit"] is None  # what ran is the package, not this checkout


def test_nothing_secret_is_sent_or_written(head: Head, sent: tuple[Path, str], space: Path, data: Path) -> None:
    info = head.info("sent")
    assert info["metadata"]["fedtune"] and info["runtime_env"]["env_vars"] == jobs.JOB_ENVIRONMENT
    package = re.fullmatch(r"gcs://(\w+)\.zip", info["runtime_env"]["working_dir"])[1]
    (unpacked,) = head.folder.glob(f"session_2*/runtime_resources/working_dir_files/{package}")
    files = [p for folder in (unpacked, sent[0]) for p in folder.rglob("*") if p.is_file()]
    assert unpacked / "fedtune" / "search.py" in files and unpacked / "given" / "random.py" in files
    texts = [json.dumps(info).encode(), sent[1].encode(), *(p.read_bytes() for p in files)]
    for secret in (head.token, "hunter2", str(space.parent), str(data)):
        assert not any(secret.encode() in text for text in texts)


def test_jobs_lists_its_own_and_shows_their_logs(head: Head, sent: tuple[Path, str]) -> None:
    status, out, _ = head.run("jobs", "list")
    (row,) = [line for line in out.splitlines() if line.startswith("sent ")]
    assert status == 0
    assert re.search(r"succeeded +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +0:\d\d:\d\d +search --algo fedavg", row)
    plain, followed = head.run("jobs", "logs", "sent"), head.run("jobs", "logs", "sent", "--follow")
    assert plain[0] == followed[0] == 0
    assert plain[1] in sent[1] and "best of 2 trials" in plain[1]
    assert followed[1] == plain[1] + "sent: succeeded\n"
    cases = {
        ("jobs", "logs", "snet"): "unknown job 'snet': did you mean 'sent'",
        ("jobs", "stop", "nothing-like-it"): "unknown job 'nothing-like-it': ",
        ("jobs", "stop", "sent"): "only a running job can be stopped, but sent is succeeded",
        (
            "submit",
            "--name",
            "sent",
            "--",
            *TINY.split(),
            "--storage-path",
            "/shared",
        ): "the cluster already had a job",
    }
    for words, message in cases.items():
        status, out, err = head.run(*words)
        assert (status, out, err.count("\n")) == (2, "", 1) and message in err


@pytest.fixture(scope="module")
def stopped(head: Head, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A search whose trials all run; its client was interrupted before the job was stopped; what that client said.

    Space and algorithm are the user's own files, which are deleted while it runs.
    """
    storage, file = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("own") / "space.py"
    slow = storage / "slow"
    slow.touch()
    algorithm = fedproto_in(tmp_path_factory.mktemp("mine"), slowed_by=slow)
    file.write_text("from ray import tune\npull = {'lam': tune.loguniform(0.1, 10)}")
    words = [*LONG.split(), "--space", f"{file}:pull"]
    words += ["--algo", str(algorithm)]
    words += ["--storage-path", str(storage), "--name", "run"]
    process = head.begin("submit", "--name", "stopped", "--", *words)
    wait_for(lambda: len(logs.logged(storage / "run")) == 2, 300)
    gone(file), gone(algorithm)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=3000)
    assert process.returncode == 130, err
    assert head.info("stopped")["status"] == "RUNNING"
    status, said, err = head.run("jobs", "stop", "stopped")
    assert (status, said.partition(";")[0]) == (0, "stopped: stopped"), err
    slow.unlink()
    return storage / "run", out


@pytest.mark.long
def test_a_stopped_job_keeps_what_it_found(head: Head, stopped: tuple[Path, str]) -> None:
    run, said = stopped
    assert f"stopped continues to run.  Follow it: fedtune jobs logs stopped --follow --address {head.address}" in said
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert all((run / name).exists() for name in ("trials.parquet", "rounds.parquet", "best.yaml", "study.journal"))
    assert head.info("stopped")["status"] == "STOPPED"
    (log,) = head.folder.glob("session_2*/logs/jobs/supervisor-stopped.log")
    assert "terminated gracefully with SIGTERM" in log.read_text()  # not killed over the time that it took
    status, out, _ = head.run("jobs", "logs", "stopped", "--follow")
    assert status == 1 and out.endswith("stopped: stopped\n")


@pytest.mark.long
def test_a_job_goes_on_with_a_stopped_run_whose_files_are_gone_and_outlives_its_client(
    head: Head, stopped: tuple[Path, str]
) -> None:
    """The client is killed as soon as the job has begun to say something."""
    own = json.loads((stopped[0] / "run.json").read_text())["own"]
    assert [file["name"] for file in own] == ["mine.py", "beside.py", "space.py"]
    assert {f.name for f in (stopped[0] / "own").iterdir()} == {"mine.py", "beside.py", "space.py"}
    process = head.begin("submit", "--", "resume", str(stopped[0]))
    job = process.stdout.readline().split()[1]
    assert job.startswith("resume-run-")
    while "trials of up to" not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert head.info(job)["status"] == "RUNNING"
    assert wait_for(lambda: {head.info(job)["status"]} & {"SUCCEEDED", "FAILED"}, 300, every=0.5) == {"SUCCEEDED"}
    assert json.loads((stopped[0] / "run.json").read_text())["state"] == "finished"
    rounds = pd.read_parquet(stopped[0] / "rounds.parquet")
    assert rounds.groupby("trial")["round"].apply(list).tolist() == [list(range(1, 17))] * 2


def test_what_goes_wrong_with_a_job_is_told(head: Head, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    status, out, err = head.run("submit", "--", *TINY.split(), "--storage-path", str(file))
    assert status == 1 and "error: --storage-path must be a folder" in out and out.endswith("failed, exit status 2\n")


@pytest.mark.long
def test_a_program_runs_in_the_copy_that_the_job_has_brought(head: Head, tmp_path: Path) -> None:
    own, storage = tmp_path / "own", tmp_path / "storage"
    own.mkdir()
    script = "import sys\nfor t in '123':\n    print('acc:', float(sys.argv[1]) * int(t))\nopen('trace', 'a').close()"
    (own / "own.py").write_text(script)
    file = "command = 'python own.py {lr}'\nrounds = 3\n[metrics.val_acc]\npattern = 'acc: (.*)'\n"
    (own / "own.toml").write_text(f"{file}[space]\nlr = '0.01..0.1'\n")
    words = f"--program {own}/own.toml --trials 1 --final-seeds 0 --no-dashboard --storage-path {storage} --name run"
    status, out, err = head.run("submit", "--name", "program", "--", *words.split())
    assert status == 0, out + err
    record = json.loads((storage / "run" / "run.json").read_text())
    assert record["state"] == "finished" and record["program"]["folder"] == f"{storage}/run-programs/own"
    assert (storage / "run-programs" / "own" / "trace").exists() and not (own / "trace").exists()
    assert "search --trials 1" in head.run("jobs", "list")[1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, "the given token is not valid there"),
        ({"RAY_AUTH_MODE": "disabled"}, "none was found"),
        ({"RAY_AUTH_TOKEN_PATH": "/none"}, "none was found"),
    ],
)
def test_without_its_token_a_cluster_takes_nothing(head: Head, environment: dict[str, str], message: str) -> None:
    status, out, err = head.run("submit", "--", *TINY.split(), "--storage-path", "/shared", **environment)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err and "`ray get-auth-token` on its head" in err and "000" not in err


@pytest.mark.parametrize(("header", "status"), [({}, 401), ({"Authorization": f"Bearer {'0' * 64}"}, 403)])
def test_a_job_is_refused_without_a_token_and_with_a_wrong_one(head: Head, header: dict[str, str], status: int) -> None:
    """As docs/background/security.md has it, by whatever client."""
    job = {"entrypoint": f"touch {head.folder / 'ran'}"}
    assert requests.post(f"{head.address}/api/jobs/", json=job, headers=header, timeout=300).status_code == status
    assert not (head.folder / "ran").exists()


def test_a_log_whose_line_breaks_is_shown_once(capsys: pytest.CaptureFixture) -> None:
    class Shaky:
        """A client whose first connection breaks; the next sends the log from its start, as the cluster does."""

        told = [["one\nt", "wo\n"], ["one\ntwo\nthr", "ee\n"]]
        stands = [JobStatus.RUNNING, JobStatus.FAILED]

        async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
            for text in self.told.pop(0):
                yield text
            if self.told:
                raise RuntimeError("WebSocket connection closed unexpectedly")

        def get_job_info(self, job: str) -> SimpleNamespace:
            return SimpleNamespace(status=self.stands.pop(0), driver_exit_code=1, message="")

    client: Any = Shaky()
    assert jobs.follow(client, "shaky", "http://head:8265") == 1
    assert capsys.readouterr().out == "one\ntwo\nthree\nshaky: failed, exit status 1\n"


AT = "submit --address http://127.0.0.1:1 "
GOOD = "-- --algo fedavg --storage-path /shared/runs "
CASES = {
    "submit": "the search's arguments go after --, but none were given",
    AT: "the search's arguments go after --, but none were given",
    AT + "--": "the search's arguments go after --, but none were given",
    AT + "--algo fedavg": "unknown option '--algo': known are --address, ",
    "submit " + GOOD: "--address of the cluster is needed, but none was given",
    "submit --address head:8265 " + GOOD: "must be the dashboard's, like http://head:8265, but got 'head:8265'",
    "submit --address ray://head:10001 " + GOOD: "like http://head:8265, but got 'ray://head:10001'",
    "submit --address http://head:port " + GOOD: "like http://head:8265, but got 'http://head:port'",
    AT + GOOD: "nobody answers at 127.0.0.1:1",
    AT + "--name a/b " + GOOD: "may have letters, digits, '.', '_' and '-', but got 'a/b'",
    AT + "-- --algo fedavgg --storage-path /shared": "unknown algorithm 'fedavgg': did you mean 'fedavg'",
    AT + "-- search --algo fedavgg --storage-path /shared": "unknown algorithm 'fedavgg': did you mean 'fedavg'",
    AT + "-- serch --algo fedavg": "unrecognized arguments: serch",
    AT + "-- --algo fedavg": "--storage-path must be the absolute path of a folder that all nodes of the cluster share",
    AT + "-- --algo fedavg --storage-path s3://bucket/runs": "but got s3:/bucket/runs",
    AT + GOOD + "--address auto": "a submitted search uses the cluster that it runs on, but got --address auto",
    AT + GOOD + "--space {tmp}/none.py": "--space needs a name or a Python file, but there is no file",
    AT + GOOD + "--data-dir data": "--data-dir must be the absolute path",
    AT + GOOD + "--dataset mnist --model mlp --partition iid": "mnist must be sent with the job, but it is not in",
    AT + "--data {tmp} " + GOOD + "--dataset mnist --model mlp --partition iid": "not in {tmp}/MNIST/raw; give --data",
    AT + GOOD + "--clients 900": "rows",
    AT + GOOD + "--gpus-per-trial 1.5": "a fraction below 1 or a whole number",
    AT + GOOD + "--name a/b": "--name must be a plain folder name",
    AT + "-- resume runs/x": "RUN must be the absolute path",
    AT + "-- resume": "the following arguments are required: RUN",
    AT + "-- extend /shared/x": "one of the arguments --trials --rounds is required",
    AT + "--data {tmp} -- resume /shared/x": "--data must be a folder with torchvision's layout",
    "jobs": "the following arguments are required: list|logs|stop",
    "jobs lst": "invalid choice: 'lst'",
    "jobs logs": "the following arguments are required: ID",
    "jobs list --address 127.0.0.1:8265": "like http://head:8265, but got '127.0.0.1:8265'",
    "jobs list --address http://127.0.0.1:1": "nobody answers at 127.0.0.1:1",
    "jobs stop x --address https://127.0.0.1:1": "nobody answers at 127.0.0.1:1",
}


@pytest.mark.parametrize("line", CASES)
def test_what_cannot_be_submitted_is_refused_before_anything_is_sent(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*jobs.ENVIRONMENT, "FEDTUNE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    command, _, rest = line.replace("{tmp}", str(tmp_path)).partition(" ")
    said = refusal({"submit": submit, "jobs": jobs_command}[command].main, rest, capsys)
    assert CASES[line].replace("{tmp}", str(tmp_path)) in said
    assert not list(tmp_path.iterdir())


def test_the_environment_names_the_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:2")
    assert "nobody answers at 127.0.0.1:2" in refusal(jobs_command.main, "list", capsys)
    assert "nobody answers at 127.0.0.1:1" in refusal(submit.main, AT.removeprefix("submit ") + GOOD, capsys)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:3")
    assert "nobody answers at 127.0.0.1:3" in refusal(jobs_command.main, "list", capsys)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # of no dashboard
    assert jobs.given_address() is None


def test_the_package_has_the_code_the_space_and_of_the_data_what_is_read(tmp_path: Path) -> None:
    files = tiny_mnist(tmp_path / "data")
    (tmp_path / "lam.py").write_text("from ray import tune\nmine = {'lr': tune.uniform(0.01, 0.1)}")
    words = f"--algo fedavg {MNIST} --space={tmp_path}/lam.py:mine --storage-path /shared --lr 0.02 --name run".split()
    got = [submit.prepare(words, None, tmp_path / "data", tmp_path / f"{i}.zip") for i in range(2)]
    assert (tmp_path / "0.zip").read_bytes() == (tmp_path / "1.zip").read_bytes()  # the cluster need not have it twice
    names = set(zipfile.ZipFile(tmp_path / "0.zip").namelist())
    assert {"given/lam.py", *(f"data/MNIST/raw/{f.name}" for f in files)} == {
        n for n in names if not n.startswith("fedtune/")
    }
    linked = ("trainables/fedavg.py", "search_spaces/fedavg.py", "analysis/plots.py")
    assert {"fedtune/search.py", *(f"fedtune/{name}" for name in linked)} <= names
    assert not any("__pycache__" in n for n in names)
    assert got[0].run == Path("/shared/run") and re.fullmatch(r"run-\d{8}-\d{6}", got[0].name)
    assert got[0].entrypoint == (
        f"python -m fedtune search --algo fedavg {MNIST}--storage-path /shared --lr 0.02 --name run "
        "--data-dir data --space given/lam.py:mine --address auto"
    )


def test_users_files_are_sent_with_what_they_import(tmp_path: Path) -> None:
    file = fedproto_in(tmp_path)
    name = os.path.relpath(file)
    for words, sent in (
        (f"search --algo {name}", "--algo given/mine.py"),
        (f"compare --algos local,{name}:Mine", "--algos local,given/mine.py:Mine,fedavgft"),
    ):
        rest = "--storage-path /shared --name run"
        job = submit.prepare(f"{words} {rest}".split(), None, None, tmp_path / "job.zip")
        names = zipfile.ZipFile(tmp_path / "job.zip").namelist()
        assert {n for n in names if n.startswith("given/")} == {"given/mine.py", "given/beside.py"}
        assert job.run == Path("/shared/run")
        assert job.entrypoint == f"python -m fedtune {words.split()[0]} {rest} {sent} --address auto"


def test_whatever_is_the_users_own_is_sent(tmp_path: Path) -> None:
    fedproto_in(tmp_path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(shape, classes, width=8):\n    n = nn.Module()\n"
        "    n.body, n.head = nn.Linear(shape[0], width), nn.Linear(width, classes)\n    return n\n"
    )
    (tmp_path / "met.py").write_text("def hits(scores, y):\n    return (scores.argmax(1) == y).double().mean()\n")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(160, 3)), y=np.arange(160) % 2, owner=np.arange(160) // 40)
    words = ["--storage-path", "/shared", "--name", "run", "--partition", "natural", "--owners", "1", "--clients", "4"]
    given = {"--algo": "mine.py:Mine", "--model": "net.py:net(width=4)", "--dataset": "rows.npz"}
    given["--metric"] = "met.py:hits"
    typed = [word for flag, name in given.items() for word in (flag, f"{tmp_path}/{name}")]
    job = submit.prepare([*words, *typed], None, None, tmp_path / "job.zip")
    sent = {n for n in zipfile.ZipFile(tmp_path / "job.zip").namelist() if n.startswith("given/")}
    assert sent == {f"given/{n}" for n in ("mine.py", "beside.py", "net.py", "rows.npz", "met.py")}
    there = dict(zip(job.arguments[::2], job.arguments[1::2], strict=True))
    assert {flag: there[flag] for flag in given} == {flag: f"given/{name}" for flag, name in given.items()}


def test_a_comparison_is_packed_like_a_search(tmp_path: Path) -> None:
    files = tiny_mnist(tmp_path / "data")
    words = f"compare --algos fedavg,local {MNIST} --storage-path /shared --name both".split()
    job = submit.prepare(words, None, tmp_path / "data", tmp_path / "job.zip")
    assert {f"data/MNIST/raw/{f.name}" for f in files} < set(zipfile.ZipFile(tmp_path / "job.zip").namelist())
    assert job.run == Path("/shared/both") and job.entrypoint == (
        f"python -m fedtune compare --algos fedavg,local {MNIST}--storage-path /shared --name both --data-dir data "
        "--address auto"
    )


def test_data_that_the_cluster_has_are_not_sent(tmp_path: Path) -> None:
    for more in ("--data-dir /shared/data", "--download"):
        words = f"--algo fedavg {MNIST} --storage-path /shared {more} --gpus-per-trial 64".split()
        job = submit.prepare(words, "given", tmp_path / "none", tmp_path / "job.zip")
        assert job.name == "given" and more in job.entrypoint
        assert job.entrypoint.count("--data-dir") == more.count("--data-dir")


def test_of_emnist_only_the_split_that_is_searched_is_sent(tmp_path: Path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("letters", "byclass"):
        (raw / f"emnist-{split}-train-images-idx3-ubyte").touch()
    (name,) = package.data_files(["emnist-letters"], tmp_path)
    assert name == "data/EMNIST/raw/emnist-letters-train-images-idx3-ubyte"


def test_more_than_the_job_server_takes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_mnist(tmp_path)
    monkeypatch.setattr(package, "LIMIT", 1 << 19)
    line = refusal(submit.main, f"--address http://127.0.0.1:1 --data {tmp_path} {GOOD} {MNIST}", capsys)
    assert "at most 0.5 MiB packed, but are more with" in line and "give their folder there with --data-dir" in line


def test_a_resumed_run_gets_the_data_that_are_named(tmp_path: Path) -> None:
    tiny_mnist(tmp_path)
    job = submit.prepare(["resume", "/shared/run"], None, tmp_path, tmp_path / "job.zip")
    assert job.entrypoint == "python -m fedtune resume /shared/run --data-dir data --address auto"
    assert "data/MNIST/raw/train-images-idx3-ubyte" in zipfile.ZipFile(tmp_path / "job.zip").namelist()
    assert re.fullmatch(r"resume-run-\d{8}-\d{6}", job.name)
