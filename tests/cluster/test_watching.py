"""A running search as others see it: Prometheus, Grafana's panels, Ray's dashboard in a browser, TensorBoard, ports."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import requests
from support.chromium import answers
from support.ports import free_port
from support.processes import below
from support.searches import QUICK, searched
from support.waiting import wait_for

from fedtune.cluster import prometheus as gauges
from fedtune.cluster.prometheus import COUNTERS, GAUGES, Gauges
from fedtune.core.objectives import Objective
from fedtune.runs import logs
from fedtune.runs.files import RunFiles

BOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "fedtune.json"
# two that diverge at once, two that play until they are told to end, one that waits for them
SPACE = """SPACE = [
    {"lr": 1.0, "momentum": 0.99, "lam": 50.0}, {"lr": 1.0, "momentum": 0.99, "lam": 49.0},
    {"lr": 0.01, "momentum": 0.5, "lam": 1.0}, {"lr": 0.02, "momentum": 0.5, "lam": 1.0},
    {"lr": 0.03, "momentum": 0.5, "lam": 1.0},
]"""
# with it a round takes half a second, but no processor, for as long as the search is watched
PAUSE = """import time


def pause(scores, y):
    time.sleep(0.2)
    return y.sum() * 0.0
"""
GOAL = ("val_acc", "max")
AGENT = 52365  # the one port that Ray's agent would take


def test_the_grafana_dashboard_draws_all_that_is_published_and_nothing_else() -> None:
    board = json.loads(BOARD.read_text())
    drawn = {n for panel in board["panels"] for e in expressions(panel) for n in re.findall(r"ray_\w+", e)}
    assert drawn == {f"ray_{n}" for n in GAUGES} | {f"ray_{n}_total" for n in COUNTERS}
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(t["datasource"] == source for panel in board["panels"] for t in [panel, *panel["targets"]])
    datasource, run = board["templating"]["list"]
    assert (datasource["name"], datasource["type"], datasource["query"]) == ("datasource", "datasource", "prometheus")
    assert (run["name"], run["datasource"]) == ("run", source)
    assert run["query"]["query"] == "label_values(ray_fedtune_trials_running, run)"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


class Published:
    """In place of Ray's gauge or counter: remembers what it was told."""

    told: dict[tuple, float]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.tags = name, tag_keys

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.tags
        self.told[(self.name, *tags.values())] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        self.set(self.told.get((self.name, *tags.values()), 0) + value, tags)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[tuple, float]:
    """What is published, by name and tags."""
    Published.told = {}
    monkeypatch.setattr(gauges, "Gauge", Published)
    monkeypatch.setattr(gauges, "Counter", Published)
    monkeypatch.setattr(gauges.ray, "cluster_resources", lambda: {"GPU": 4.0})
    monkeypatch.setattr(gauges, "PERIOD", 0.0)
    return Published.told


def trial(name: str, status: str, gpus: float = 0, **row: Any) -> Any:
    """As much of a trial as is read."""
    return SimpleNamespace(
        trial_id=name,
        status=status,
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
        last_result=row,
        metric_analysis={n: {"max": v, "min": v} for n, v in row.items()},
        placement_group_factory=SimpleNamespace(required_resources={"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}),
    )


def test_what_is_published_of_trials_that_run_end_and_wait(told: dict[tuple, float]) -> None:
    row = {"val_acc": 0.5, "training_iteration": 3, "comm_mb": 1.5, "time_this_iter_s": 0.25}
    one, two = trial("1", "RUNNING", 0.5, **row), trial("2", "RUNNING", 0.5)
    mine, of_search, of_trial = Gauges("r", "a"), ("r", "a"), ("r", "a", "1")
    mine.on_step_end(1, [one, two, trial("3", "PENDING"), trial("4", "PAUSED", 0.5, **row | {"val_acc": 0.7})])
    assert told == {
        ("fedtune_objective", *of_trial, *GOAL): 0.5,
        ("fedtune_round", *of_trial): 3,
        ("fedtune_rounds_per_second", *of_trial): 4,
        ("fedtune_comm_mb", *of_trial): 1.5,
        ("fedtune_best_objective", *of_search, *GOAL): 0.7,
        ("fedtune_trials_running", *of_search): 2,
        ("fedtune_gpu_share", *of_search): 0.25,
    }
    mine.on_trial_result(1, [], two, {"val_acc": 0.8})
    mine.on_trial_result(1, [], two, {"val_acc": 0.9, "diverged": True})  # chance is no accuracy
    told.clear()
    ends = [
        trial("1", "TERMINATED", 0.5, **row | {"val_acc": 0.6}),
        trial("2", "TERMINATED", val_acc=0.9, diverged=True),
        trial("3", "TERMINATED", val_acc=0.1, complete=True),
        trial("4", "ERROR"),
        trial("5", "RUNNING", 1, val_acc=math.nan),
    ]
    mine.on_step_end(2, ends)
    assert told[("fedtune_objective", *of_trial, *GOAL)] == 0.6  # once more
    assert not any({"2", "4", "5"} & set(key) for key in told)  # what diverged keeps its last round
    ended = {key[-1]: n for key, n in told.items() if key[0] == "fedtune_trials_ended"}
    assert ended == dict.fromkeys(("stopped", "diverged", "finished", "failed"), 1)
    assert told[("fedtune_best_objective", *of_search, *GOAL)] == 0.8
    assert told[("fedtune_gpu_share", *of_search)] == 0.25
    told.clear()
    mine.on_experiment_end(ends[:4])
    names = ("fedtune_best_objective", "fedtune_trials_running", "fedtune_gpu_share")
    assert {key[0]: n for key, n in told.items()} == dict(zip(names, (0.8, 0, 0), strict=True))


def test_what_is_published_follows_the_objective(told: dict[tuple, float]) -> None:
    mine = pickle.loads(pickle.dumps(Gauges("r", "a", Objective("val_loss", "min"))))
    trials = [trial("1", "RUNNING", val_acc=0.9, val_loss=0.4), trial("2", "PAUSED", val_acc=0.1, val_loss=0.3)]
    mine.on_step_end(1, trials)
    for loss in (0.25, math.nan, 0.5):
        mine.on_trial_result(1, [], None, {"val_acc": 0.2, "val_loss": loss})
    mine.on_experiment_end([])
    goal = ("val_loss", "min")
    assert told[("fedtune_objective", "r", "a", "1", *goal)] == 0.4
    assert told[("fedtune_best_objective", "r", "a", *goal)] == 0.25


def test_a_resumed_search_publishes_the_counts_of_all_of_it(told: dict[tuple, float]) -> None:
    before = Gauges("r", "a")
    before.on_step_end(1, [trial("1", "RUNNING", val_acc=0.5)])
    again = pickle.loads(pickle.dumps(before))
    told.clear()
    over = [trial("1", "TERMINATED", val_acc=0.7, complete=True), trial("2", "TERMINATED", val_acc=0.9, diverged=True)]
    again.on_step_end(1, [*over, trial("3", "RUNNING", val_acc=0.2)])
    assert told == {
        ("fedtune_trials_ended", "r", "a", "finished"): 1,
        ("fedtune_trials_ended", "r", "a", "diverged"): 1,
        ("fedtune_objective", "r", "a", "3", *GOAL): 0.2,
        ("fedtune_best_objective", "r", "a", *GOAL): 0.7,
        ("fedtune_trials_running", "r", "a"): 1,
        ("fedtune_gpu_share", "r", "a"): 0,
    }


def test_errors_of_publishing_do_not_end_a_search(told: dict[tuple, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "Gauge", lambda *_: 1 / 0)
    mine = Gauges("r", "a")
    mine.on_step_end(1, [trial("1", "RUNNING", val_acc=0.5), None])
    mine.on_experiment_end([None])
    assert told == {}


@pytest.mark.long
@pytest.mark.usefixtures("one_ray")
def test_tensorboard_gets_its_files_when_asked_for(tmp_path: Path) -> None:
    got = searched(tmp_path, "--algo local --trials 2 --rounds 2 --max-concurrent 1 --logger tensorboard " + QUICK)
    for trial in got.trials["trial"]:
        [events] = (got.folder / f"local-{trial}").glob("events.out.tfevents.*")
        assert events.read_bytes().count(b"ray/tune/val_acc") >= 2


@pytest.fixture(scope="module")
def running() -> Iterator[SimpleNamespace]:
    """A search in a process of its own, with two trials running and two over.  Ray's files lie in a folder of its own.

    Ray's fixed port is taken, and its user did not forbid usage statistics.
    """
    folder = Path(tempfile.mkdtemp(prefix="ft", dir="/tmp"))  # short: paths of sockets may not be long
    run, log = folder / "run", folder / "log"
    (folder / "space.py").write_text(SPACE)
    (folder / "pause.py").write_text(PAUSE)
    arguments = "--algo fedproto --scenario digits-w4 --clients 3 --rounds 1000000 --scheduler none --max-concurrent 2 "
    arguments += f"--final-seeds 0 --space {folder / 'space.py'} --metric {folder / 'pause.py'}:pause "
    arguments += f"--storage-path {folder} --name run"
    settings = {"RAY_TMPDIR": str(folder), "RAY_metrics_report_interval_ms": "1000", "RAY_USAGE_STATS_ENABLED": "1"}
    how: dict[str, Any] = {"stderr": subprocess.STDOUT, "env": {**os.environ, **settings}, "start_new_session": True}

    def begun() -> list[str]:
        """Where its dashboard is, once four trials have begun and two of them go on."""
        both = (len(logs.logged(run)), len(alive(run))) == (4, 2)
        return re.findall(r"dashboard: (http://\S+)", log.read_text()) if both else []

    with socket.socket() as taken, log.open("w") as said:
        with suppress(OSError):  # it is taken by another
            taken.bind(("127.0.0.1", AGENT))
            taken.listen()
        process = subprocess.Popen([sys.executable, "-m", "fedtune.search", *arguments.split()], stdout=said, **how)
        try:
            with suppress(AssertionError):
                wait_for(lambda: process.poll() is not None or begun())
            rows = {trial: len(of) for trial, of in logs.logged(run).items()}
            assert process.poll() is None and begun(), (rows, log.read_text())
            [url] = begun()
            [latest] = folder.glob("ft-*/r/session_latest")
            session = Path(os.path.realpath(latest))
            yield SimpleNamespace(run=run, url=url, session=session, process=process)
            assert not list(run.rglob("events.out.tfevents.*"))  # unless they are asked for
            process.terminate()
            assert process.wait(300) == 130 and not latest.parents[1].exists()
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def alive(run: Path) -> dict[str, list[dict[str, Any]]]:
    """What the trials that did not diverge have reported."""
    return {trial: rows for trial, rows in logs.logged(run).items() if not any("diverged" in r for r in rows)}


@pytest.mark.long
def test_nothing_of_a_search_listens_beyond_loopback_or_reports_its_use(running: SimpleNamespace) -> None:
    family = below(running.process.pid)
    heard = listening(family)
    assert int(running.url.rpartition(":")[2]) in [port for _, port in heard] and len(heard) > 5
    assert [(at, port) for at, port in heard if not ipaddress.ip_address(at).is_loopback] == []
    names = [Path(f"/proc/{pid}/cmdline").read_text() for pid in family]
    for part in ("gcs_server", "raylet/raylet", "dashboard.py"):
        pid = next(pid for pid, name in zip(family, names, strict=True) if part in name)
        assert "RAY_USAGE_STATS_ENABLED=0" in Path(f"/proc/{pid}/environ").read_text().split("\0")


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """Addresses and TCP ports at which processes listen."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found += [c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return [(at.ip.removeprefix("::ffff:"), at.port) for at in found]


@pytest.mark.long
def test_a_workers_title_names_its_trial_and_the_folder_has_the_dashboards_address(running: SimpleNamespace) -> None:
    wanted = {f"ray::FederatedTrainable.train fedproto-{trial}" for trial in alive(running.run)}

    def titles() -> set[str]:
        found = set()
        for pid in below(running.process.pid):
            with suppress(OSError):  # it ended meanwhile
                found.add(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0"))
        return found

    for title in wanted:  # between two rounds it has none
        wait_for(lambda title=title: title in titles())
    assert wait_for(RunFiles(running.run).dashboard_file.read_text) == f"{running.url}\n"


@pytest.fixture(scope="module")
def prometheus(running: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Prometheus on the file that Ray wrote; called with an expression it gives a list of labels and values."""
    if not shutil.which("prometheus"):
        pytest.skip("needs Prometheus (Debian: apt-get install prometheus)")
    ours = tmp_path_factory.mktemp("prometheus")
    wait_for((running.session / "prom_metrics_service_discovery.json").exists)
    config = wait_for((running.session / "metrics" / "prometheus" / "prometheus.yml").read_text)
    (ours / "prometheus.yml").write_text(config.replace("interval: 10s", "interval: 1s"))
    at = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={ours}/prometheus.yml", f"--storage.tsdb.path={ours}/data"]
    with (ours / "log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address={at}"], stdout=log, stderr=subprocess.STDOUT)

    def ask(expression: str) -> list[tuple[dict[str, str], float]]:
        answer = requests.get(f"http://{at}/api/v1/query", params={"query": expression}, timeout=300).json()
        assert answer["status"] == "success", (expression, answer)
        return [(found["metric"], float(found["value"][1])) for found in answer["data"]["result"]]

    try:
        wait_for(lambda: server.poll() is not None or answers(f"http://{at}/-/ready"))
        assert server.poll() is None, (ours / "log").read_text()
        yield ask
    finally:
        server.terminate()
        server.wait(300)


@pytest.mark.long
def test_prometheus_sees_what_the_trials_log(running: SimpleNamespace, prometheus: Any) -> None:
    def by_trial(name: str) -> dict[str, float]:
        return {labels["trial"]: value for labels, value in prometheus(name)}

    def agrees() -> bool:
        """Both running trials, and only they; their values are those of one logged round each."""
        seen = {n: by_trial(f"ray_fedtune_{n}") for n in ("round", "objective", "comm_mb", "rounds_per_second")}
        logged = alive(running.run)
        for trial, rows in logged.items():
            row = next((r for r in rows if r["round"] == seen["round"].get(trial)), {})
            values = tuple(seen[n].get(trial) for n in ("objective", "comm_mb", "rounds_per_second"))
            if row == {} or values != (row["val_acc"], row["comm_mb"], 1 / row["time_this_iter_s"]):
                return False
        return all(values.keys() == logged.keys() for values in seen.values())

    wait_for(agrees)
    tags = {"run": "run", "algorithm": "fedproto"}
    for name in GAUGES:
        found = wait_for(lambda name=name: prometheus(f"ray_{name}"))
        assert all(tags.items() <= labels.items() for labels, _ in found)
    wait_for(lambda: prometheus("ray_fedtune_best_objective")[0][1] == peak(running.run))
    assert wait_for(lambda: prometheus("ray_fedtune_trials_running"))[0][1] == 2
    assert prometheus("max_over_time(ray_fedtune_trials_running[1h])")[0][1] == 2
    [(labels, value)] = prometheus("ray_fedtune_trials_ended_total")
    assert (labels["status"], value) == ("diverged", 2) and tags.items() <= labels.items()
    assert prometheus("ray_fedtune_gpu_share")[0][1] == 0


def peak(run: Path) -> float:
    return max(r["val_acc"] for rows in logs.logged(run).values() for r in rows if "diverged" not in r)


@pytest.mark.long
def test_every_panel_of_the_grafana_dashboard_shows_the_search(prometheus: Any) -> None:
    for panel in json.loads(BOARD.read_text())["panels"]:
        for expression in expressions(panel):
            plain = expression.replace("$run", ".*").replace("$__range", "5m")
            if 'mode="min"' not in plain:  # accuracy is searched for here
                assert wait_for(lambda plain=plain: prometheus(plain)), panel["title"]


@pytest.mark.long
def test_rays_dashboard_shows_the_trials_to_who_has_the_token(running: SimpleNamespace) -> None:
    """Each worker is named after its search, and its log after the trials that it played."""
    [tells] = re.findall(r"its token: (.*)\)", (running.run.parent / "log").read_text())
    token = subprocess.run(tells.split(), stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout.strip()
    header = {"Authorization": f"Bearer {token}"}

    def asked(path: str, **how: Any) -> requests.Response:
        return requests.get(f"{running.url}/{path}", timeout=300, **how)

    assert asked("logical/actors").status_code == 401
    wait_for(lambda: asked("logical/actors", headers=header).status_code == 200)
    actors = asked("logical/actors", headers=header).json()["data"]["actors"].values()
    at_work = [actor for actor in actors if actor["state"] == "ALIVE"]
    assert len(at_work) == 2 and all(f"fedproto in {running.run.name}" in str(actor) for actor in at_work)
    logs_of = "".join(file.read_text(errors="replace") for file in (running.session / "logs").glob("worker-*.err"))
    assert alive(running.run).keys() <= set(re.findall("fedproto-([0-9a-f]{8}): {", logs_of))
    assert "fedtune.search --algo fedproto" in asked("api/jobs/", headers=header).text
