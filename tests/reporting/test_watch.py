"""The live page: who may read it, what it shows of runs in every state, and how it follows them in a real browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import requests
import uvicorn
from support.chromium import Browser, chromium
from support.commands import refusal
from support.processes import below
from support.waiting import wait_for

from fedtune.commands import watch as command
from fedtune.core.errors import UserError
from fedtune.reporting.watch import drawing, server, trial_log
from fedtune.reporting.watch.history import StudyFolders
from fedtune.reporting.watch.history import rows as rows_of
from fedtune.runs.files import COMPARISON, REPRODUCTION, RunFiles, write_json
from fedtune.runs.overview import GONE, Reader

TOKEN = "a-token-of-the-tests"
HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
RECORD: dict[str, Any] = (
    {"algorithm": "fedproto", "searcher": "tpe", "scheduler": "asha", "started": "2026-11-21T05:08:12+00:00", "seed": 0}
    | {"trials": 5, "concurrent": 1, "space": {"lr": "0.001..0.3 log"}, "objectives": ["val_acc"], "rungs": [2]}
    | {"scenario": {"dataset": "digits", "rounds": 6}, "scenario_name": "digits-w4"}
    | {"budget": {"unit": "rounds", "limit": 6, "since": 1}}
)


def log(run: Path, trial: str, rounds: int, **more: Any) -> Path:
    """The trial's folder with its log."""
    row = {"trial_id": trial, "config": {"lr": 0.02}, "hostname": "node", "pid": 7, "comm_mb": 1.0, "val_loss": 1.0}
    row |= {"seconds": 0.5, "eval_seconds": 0.1, "time_total_s": 0.6, "time_this_iter_s": 0.5, "timestamp": time.time()}
    folder = run / f"fedproto-{trial}"
    folder.mkdir(parents=True, exist_ok=True)
    each = [row | {"round": t, "training_iteration": t, "val_acc": 0.1 * t} | more for t in range(1, rounds + 1)]
    (folder / "result.json").write_text("".join(json.dumps(one) + "\n" for one in each))
    return folder


def search(run: Path, state: str = "running", **more: Any) -> RunFiles:
    """A search with three trials: one finished, one that was stopped at the rung, one in its third round."""
    files = RunFiles(run)
    files.write(state, **RECORD | more)
    log(run, "aa", 6, complete=True)
    log(run, "bb", 2)
    log(run, "cc", 3)
    states = {"aa": "TERMINATED", "bb": "TERMINATED", "cc": "RUNNING"}
    trials = [(json.dumps({"trial_id": name, "status": status}), "") for name, status in states.items()]
    write_json(run / "experiment_state-2026.json", {"trial_data": trials})
    return files


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Any
    text: str


class Someone:
    """Somebody who asks the server at a port for paths as they are written, by default with the token in the cookie."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, how: str = "GET", cookie: str = TOKEN, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        cookies = {"Cookie": f"fedtune-watch-{self.port}={cookie}"} if cookie else {}
        connection.putrequest(how, path, skip_host="Host" in headers)
        for name, value in (cookies | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        connection.close()
        return Answer(answer.status, answer.headers, text)


@contextmanager
def served(storage: Path) -> Iterator[str]:
    """The pages of these runs, from a thread; the address of the first."""
    with server.listen("127.0.0.1", 0, True) as listening:
        port = listening.getsockname()[1]
        watch = server.WatchPages(StudyFolders(storage))
        app: Any = watch.app(TOKEN, port)
        made = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            watch.close()
            made.should_exit = True
            thread.join(300)


@pytest.fixture
def client() -> Iterator[Callable[[Path], Someone]]:
    """Makes somebody who has the token of a server of these runs."""
    with ExitStack() as held:
        yield lambda storage: Someone(int(held.enter_context(served(storage)).rpartition(":")[2]))


def watching(storage: Path, **how: Any) -> subprocess.Popen:
    """The command, in a process of its own."""
    words = [sys.executable, "-m", "fedtune", "watch", "--storage-path", str(storage), "--port", "0"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """With a finished search."""
    search(tmp_path / "done", "finished", seconds=600.0, status={"finished": 1, "stopped": 2}, final=None)
    return tmp_path


# who may read ---------------------------------------------------------------------------------------------------------


def test_nothing_is_told_without_the_token(storage: Path, client: Any) -> None:
    someone = client(storage)
    pages = ("/", "/run/done", "/trial/done?trial=aa", "/together?run=done", "/static/report.js", "/nowhere")
    for path in [path for page in pages for path in (page, f"/top{page}", f"/drawn{page}")]:
        for cookie in ("", "wrong", TOKEN[:-1], f"{TOKEN}x"):
            answer = someone.get(path, cookie=cookie)
            assert answer.status == 401 and "done" not in answer.text
    for token, cookie in (("wrong", ""), ("%ff%00%e4", ""), ("", ""), ("wrong", TOKEN)):
        assert someone.get(f"/?token={token}", cookie=cookie).status == 401


def test_the_token_in_the_address_becomes_a_cookie(storage: Path, client: Any) -> None:
    someone = client(storage)
    answer = someone.get(f"/trial/done?trial=aa&token={TOKEN}", cookie="")
    assert (answer.status, answer.headers["location"]) == (303, "/trial/done?trial=aa")
    kept = rf"fedtune-watch-{someone.port}={TOKEN}; HttpOnly; .*SameSite=lax"
    assert re.fullmatch(kept, answer.headers["set-cookie"]) and someone.get("/").status == 200
    away = someone.get(f"//elsewhere.org?token={TOKEN}", cookie="").headers["location"]
    assert away == "/elsewhere.org"


def test_a_name_that_is_not_of_this_machine_is_refused(storage: Path, client: Any) -> None:
    someone, here = client(storage), socket.gethostname()
    # as SSH forwards it; and an address without a name, which nobody can make lead elsewhere
    for host in ("127.0.0.1:8600", "localhost:9999", "[::1]:8600", "192.0.2.7", here):
        assert someone.get("/", Host=host).status == 200, host
    for host in ("evil.example:8600", "127.0.0.1.evil.example", "localhost.evil.example", "", "["):
        assert someone.get("/", Host=host).status == 421, host


def test_a_page_runs_no_script_but_ours_and_can_only_be_read(storage: Path, client: Any) -> None:
    someone = client(storage)
    answer = someone.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    assert [someone.get("/", how).status for how in ("POST", "PUT", "DELETE", "HEAD")] == [405] * 3 + [200]


def test_only_runs_and_what_lies_in_them_can_be_asked_for(storage: Path, tmp_path_factory: Any, client: Any) -> None:
    away = tmp_path_factory.mktemp("away")
    (away / "secret").write_text("the secret\n")
    search(away / "other")
    (storage / "done" / "fedproto-aa" / "error.txt").symlink_to(away / "secret")
    (storage / "done" / "fedproto-dd").mkdir()
    (storage / "done" / "fedproto-dd" / "result.json").symlink_to(away / "other" / "fedproto-aa" / "result.json")
    someone = client(storage)
    paths = ["/run/../away", f"/run/{away}/other", "/run/..%2faway", "/run/done/..", "/run/", "/run/done/fedproto-aa"]
    paths += [f"/trial/done?trial={quote(trial)}" for trial in ("../../away/other", "", "zz", "aa/../bb")]
    for path in [*paths, "/static/../server.py", "/static/page.html"]:
        assert someone.get(path).status == 404, path
    assert "the secret" not in someone.get("/top/trial/done?trial=aa").text
    assert "0.02" not in someone.get("/top/trial/done?trial=dd").text


# what it shows --------------------------------------------------------------------------------------------------------


def history(storage: Path) -> dict[str, Any]:
    return {row.name: row for row in rows_of(StudyFolders(storage), Reader())}


def test_a_folder_that_is_closed_to_the_user_hides_no_other(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storage path of several people; the tests may be root's, to whom none is closed."""
    search(storage / "mine"), search(storage / "theirs")
    stat = os.stat

    def closed(path: Any, *more: Any, **options: Any) -> os.stat_result:
        if f"{storage / 'theirs'}/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *more, **options)

    monkeypatch.setattr(os, "stat", closed)
    assert "mine" in StudyFolders(storage).all() and "theirs" not in StudyFolders(storage).all()


def test_the_history_has_every_run_and_says_which_were_killed(storage: Path) -> None:
    (storage / "done" / "best.yaml").write_text("found: {trial: aa, val_acc: 0.75}\n")
    search(storage / "killed")
    comparison = RunFiles(storage / "both", COMPARISON)
    comparison.write("running", algorithms=["fedproto", "local"], scenario_name="digits-w4", started="2026-11-22")
    search(storage / "both" / "fedproto")
    figure = RunFiles(storage / "figure", REPRODUCTION)
    command = ["python", "-m", "fedtune.analysis.reproduce", "gfpl-fig6"]
    figure.write("interrupted", grid={"table": "gfpl-fig6"}, runs=8, command=command)
    (storage / "broken").mkdir()
    (storage / "broken" / "run.json").write_text("{")
    (storage / "no run").mkdir()
    with search(storage / "goes on").lock(), comparison.lock():
        found = history(storage)
    state = {"both": "running", "broken": "damaged", "done": "finished", "figure": "interrupted", "goes on": "running"}
    assert [(name, row.state) for name, row in found.items()] == [*state.items(), ("killed", GONE)]
    assert (found["done"].best, found["done"].done, found["done"].minutes) == (0.75, "3 of 5 trials", 10.0)
    assert (found["goes on"].best, found["goes on"].done) == (pytest.approx(0.6), "3 of 5 trials")
    assert found["both"].what == "comparison of fedproto, local on digits-w4"
    assert found["both"].done.startswith("1 of 2 searches begun")
    assert (found["figure"].what, found["figure"].done) == ("reproduction of gfpl-fig6", "0 of 8 runs done")
    files = RunFiles(storage / "killed")
    with files.lock():  # it goes on
        assert history(storage)["killed"].state == "running"
    files.write("finished", **RECORD)
    assert history(storage)["killed"].state == "finished"


def test_a_first_picture_does_not_wait_for_logs(storage: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = Reader.search, threading.Event()

    def slow(self: Reader, run: Path) -> Any:
        reads.wait(300)
        return read(self, run)

    monkeypatch.setattr(Reader, "search", slow)
    someone = client(storage)
    with search(storage / "run").lock():
        for path in ("/", "/run/run"):
            assert "The run is being read." in someone.get(path).text
        reads.set()
        wait_for(lambda: '>running</td><td data-name="best" class="n">60.00</td>' in someone.get("/").text)
        wait_for(lambda: "3 of 5 trials" in someone.get("/run/run").text)


def test_a_page_of_a_search_has_its_state_best_trials_workers_and_rungs(storage: Path, client: Any) -> None:
    files = search(storage / "run")
    files.dashboard_file.write_text("http://127.0.0.1:8265\n")
    log(files.path, "bb", 2, val_acc=0.25)  # stopped there, with the best figure of that round
    with files.lock():
        text = client(storage).get("/top/run/run").text
    plain = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert "running 3 of 5 trials: 1 finished, 1 stopped, 1 running; about" in plain
    assert "aa finished 6/6 60.00" in plain and "cc 3/6 0.5 node, process 7" in plain
    assert "best val_acc there trial round 2 3 2 1 25.00 % bb" in plain and 'href="http://127.0.0.1:8265"' in text
    assert 'href="/trial/run?trial=cc"' in text
    killed = client(storage).get("/top/run/run").text
    assert "its driver is gone" in killed and "resume" in killed and "8265" not in killed and "process 7" not in killed


def test_a_dashboards_address_that_is_none_leads_nowhere(storage: Path, client: Any) -> None:
    files, someone = search(storage / "run"), client(storage)
    for line in ("javascript:alert(1)", 'http://x" onclick="y', "http://a b"):
        files.dashboard_file.write_text(line)
        with files.lock():
            assert "dashboard</a>" not in someone.get("/top/run/run").text


def test_pages_of_comparisons_and_reproductions(storage: Path, client: Any) -> None:
    comparison = RunFiles(storage / "both", COMPARISON)
    comparison.write("running", algorithms=["fedproto", "local"], scenario_name="digits-w4")
    inner = search(storage / "both" / "fedproto")
    with comparison.lock(), inner.lock():
        text = client(storage).get("/top/run/both").text
        assert client(storage).get("/run/both/fedproto").status == 200
    assert 'href="/run/both/fedproto"' in text and "1 of 2 searches begun" in text
    figure = RunFiles(storage / "figure", REPRODUCTION)
    figure.write("finished", grid={"table": "gfpl-fig6"}, runs=8)
    figure.markdown_file.write_text("| <b>a</b> | 1 |")
    assert "| &lt;b&gt;a&lt;/b&gt; | 1 |" in client(storage).get("/top/run/figure").text


def test_a_trials_log_has_its_last_rounds_its_error_and_what_its_program_printed(
    storage: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = storage / "run"
    search(run)
    folder = log(run, "cc", 3, reason="it broke", mine=0.5)
    with (folder / "result.json").open("a") as file:
        file.write('{"trial_id": "cc", "training_iter')  # as the driver writes it
    (folder / "error.txt").write_text(f"Traceback\n{HOSTILE}\n")
    (run / "outputs" / "cc").mkdir(parents=True)
    (run / "outputs" / "cc" / "output.log").write_text("epoch 1\repoch 2\n\x1b[31mred\x1b[0m\n")
    found = trial_log.read(run, "cc")
    assert [row[0] for row in found.rounds] == ["3", "2", "1"] and found.config == [("lr", "0.02")]
    assert found.columns[:2] == ["round", "val_loss"] and "mine" not in found.columns
    assert dict(found.texts) == {
        "fedproto-cc/error.txt": ["Traceback", HOSTILE],
        "outputs/cc/output.log": ["epoch 1", "epoch 2", "red"],
    }
    text = client(storage).get("/top/trial/run?trial=cc").text
    assert "it broke" in text and "&lt;/script&gt;&lt;script&gt;window" in text and "<script>window" not in text
    log(run, "cc", 500)
    monkeypatch.setattr(trial_log, "TAIL", 40_000)
    found = trial_log.read(run, "cc")
    assert found.rounds[0][0] == "500" and found.left_out == 500 - len(found.rounds) > 0


def test_a_process_of_its_own_draws_a_report_or_says_why_not(tmp_path: Path) -> None:
    search(tmp_path / "run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    artist = drawing.Artist()
    html, seconds = asyncio.run(artist.draw({"a run": tmp_path / "run"}))
    assert "The best of 3 trials" in html and '"/trial/a%20run?trial=cc"' in html and seconds > 0.1
    with pytest.raises(UserError, match="broken is not a study folder: run.json is missing or damaged"):
        asyncio.run(artist.draw({"broken": tmp_path / "broken"}))


def test_nothing_is_drawn_once_the_page_ends(tmp_path: Path) -> None:
    search(tmp_path)

    async def ends() -> None:
        artist = drawing.Artist()
        drawn = asyncio.ensure_future(artist.draw({"run": tmp_path}))
        while not artist._drawing:
            await asyncio.sleep(0.01)
        artist.close()
        with pytest.raises(UserError, match="the process that draws has ended"):
            await drawn
        with pytest.raises(UserError, match="the page has ended"):
            await artist.draw({"run": tmp_path})

    asyncio.run(ends())


def test_a_process_that_starts_while_the_page_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artist, start, made = drawing.Artist(), asyncio.create_subprocess_exec, []

    async def late(*words: Any, **settings: Any) -> asyncio.subprocess.Process:
        made.append(await start(*words, **settings))
        artist.close()
        return made[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", late)
    with pytest.raises(UserError, match="the process that draws has ended"):
        asyncio.run(artist.draw({"run": tmp_path}))
    assert made[0].returncode == -signal.SIGKILL


def test_a_part_is_sent_once_and_a_report_is_drawn_anew_when_it_changes(
    storage: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    async def draw(self: drawing.Artist, runs: dict[str, Path]) -> tuple[str, float]:
        drawn.append(runs)
        return f"drawing {len(drawn)}", 0.0

    monkeypatch.setattr(drawing.Artist, "draw", draw)
    monkeypatch.setattr(server, "REDRAW", 0.0)
    someone = client(storage)
    for part in ("/top/run/done", "/drawn/run/done"):
        first = someone.get(part)
        again = someone.get(part, **{"If-None-Match": first.headers["etag"]})
        assert (first.status, again.status, again.text) == (200, 304, "")
        assert someone.get(part).text == first.text
    assert drawn == [{"done": storage / "done"}]
    log(storage / "done", "dd", 2)
    assert someone.get("/drawn/run/done", **{"If-None-Match": first.headers["etag"]}).text == "drawing 2"
    assert someone.get("/drawn/").text == "" and len(drawn) == 2  # the history has no report


def test_runs_beside_one_another_are_what_a_report_on_several_is(storage: Path, client: Any) -> None:
    search(storage / "other", "finished", scheduler="none", scenario={"dataset": "digits", "rounds": 9}, rounds=9)
    runs = {name: storage / name for name in ("done", "other")}
    html, _ = asyncio.run(drawing.Artist().draw(runs))
    text = " ".join(re.sub("<[^>]*>", " ", html).split())
    for i, name in enumerate(runs, 1):
        assert f'><a href="#run{i}">{name}</a></td>' in html and f'<section id="run{i}">' in html
    assert text.startswith("Report All runs run what state trials in the search best, fresh seeds default, fresh seeds")
    assert "up to 6 rounds, tpe, asha with rungs at 2" in text and "up to 9 rounds, tpe, none with rungs at 2" in text
    assert text.count("What the trials found") == 2
    someone = client(storage)
    assert someone.get("/together?run=done&run=done").status == 404
    assert someone.get("/together?run=done&run=nothing").status == 404


# the command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "token", "why"),
    [
        ("--storage-path {empty}", None, "holds no run yet"),
        ("--storage-path {empty}/none", None, "does not exist yet"),
        ("{storage}/dnoe --storage-path {storage}", None, "it does not exist; {storage} has done"),
        ("--storage-path {storage} --port {taken}", None, "127.0.0.1 and {taken} are not"),
        ("--storage-path {storage} --host 192.0.2.77", None, "192.0.2.77"),
        ("--port 70000", None, "must be a whole number in 0..65535"),
        ("--port x", None, "must be a whole number in 0..65535"),
        ("--host elsewhere.example", None, "must be an IP address"),
        *(
            ("--storage-path {storage}", token, "FEDTUNE_WATCH_TOKEN must have at least 16 characters")
            for token in ("", "with a space in its middle", 'quotes"quotes"quotes', "ümläute-sind-zu-viel")
        ),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_line(
    words: str, token: str | None, why: str, storage: Path, tmp_path_factory: Any, monkeypatch: Any, capsys: Any
) -> None:
    with server.listen("127.0.0.1", 0, True) as taken:
        port = taken.getsockname()[1]
        names = {"storage": storage, "empty": tmp_path_factory.mktemp("empty"), "taken": port}
        if token is not None:
            monkeypatch.setenv("FEDTUNE_WATCH_TOKEN", token)
        assert why.format(**names) in refusal(command.main, words.format(**names), capsys)
        with server.listen("127.0.0.1", port, False) as other:  # replaced unless it was asked for
            assert other.getsockname()[1] not in (0, port)


def test_ctrl_c_ends_it_quietly_while_a_report_is_drawn(storage: Path) -> None:
    process = watching(storage)
    try:
        assert process.stdout and process.stderr
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}$", line)
        assert line.startswith("watching 1 run: ") and address
        someone = requests.Session()
        assert someone.get(address[0], timeout=300).ok
        base = address[0].partition("?")[0]
        drawing = threading.Thread(target=lambda: someone.get(f"{base}drawn/run/done", timeout=300))
        drawing.start()
        wait_for(lambda: len(below(process.pid)) > 1)  # the process that draws
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        drawing.join(300)
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


@pytest.mark.long  # it waits for the limits of time
def test_connections_that_ask_for_nothing_keep_nobody_out_and_are_given_up(storage: Path) -> None:
    """More than the process may open files, and one that sends a letter now and then."""
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))  # noqa: E731
    process = watching(
        storage, preexec_fn=few, env=os.environ | {"FEDTUNE_FORK": "no"}
    )  # a fork has its server's limit
    try:
        assert process.stdout and process.stderr
        address = process.stdout.readline().split()[-1]
        port = int(re.findall(r":(\d+)/", address)[0])
        with ExitStack() as held:
            half = [held.enter_context(socket.create_connection(("127.0.0.1", port), 120)) for _ in range(300)]
            for each in half:
                with suppress(OSError):  # it is given up already
                    each.sendall(b"GET / HTTP/1.1\r\nHost: ")
            assert requests.get(address, timeout=120).ok
            slow = held.enter_context(socket.create_connection(("127.0.0.1", port), 120))
            with suppress(OSError):
                for _ in range(1200):
                    slow.sendall(b"x")
                    time.sleep(0.1)
                pytest.fail("it is waited for two minutes")
            for each in half:
                with suppress(ConnectionResetError):
                    assert each.recv(1) == b""
            assert requests.get(address, timeout=120).ok
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


# in a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


def test_a_browser_follows_a_search_to_its_end_and_draws_its_figures(storage: Path, browser: Browser) -> None:
    name = "<img src=x onerror=window.pwned=3>"
    run = storage / name
    files = search(run, own=[{"name": HOSTILE, "path": HOSTILE, "sha256": ""}], reason=HOSTILE)
    with served(storage) as base:
        with files.lock():
            browser.open(f"{base}/?token={TOKEN}", "compare the chosen")
            browser.errors()
            browser.press("//input[@name='text']", "ONERROR")
            wait_for(lambda: "1 of 2 runs" in browser.text())
            browser.press("//td/a")
            wait_for(lambda: "1 finished, 1 stopped, 1 running" in browser.text())
            wait_for(lambda: browser.script("return document.querySelectorAll('#drawn .plot').length > 3"), 240)
            browser.press("//summary[starts-with(., 'All trials')]")
            look = "document.querySelector('details[data-key$=trials] .plot')"
            browser.script(f"{look}.scrollIntoView()")
            wait_for(lambda: browser.script(f"return {look}.querySelectorAll('.scatterlayer path').length > 0"))
            browser.script(f"window.first = {look}")
            browser.script("document.querySelector('#drawn details').open = true")
            browser.press("//section[@id='drawn']//input[@name='text']", "aa")
            before = browser.script("return first.querySelectorAll('.scatterlayer .trace').length")
            log(run, "dd", 4, val_acc=0.5)
            log(run, "cc", 5)
            wait_for(lambda: "4 of 5 trials" in browser.text() and "cc\n5/6" in browser.text().replace("\t", "\n"))
            later = f"return first === {look} && first.querySelectorAll('.scatterlayer .trace').length > {before}"
            wait_for(lambda: browser.script(later), 240)  # the same figure, with the new trial's line
            kept = "document.querySelector('#drawn input[name=text]').value"
            assert browser.script(f"return document.querySelector('#drawn details').open && {kept} === 'aa'")
            assert browser.script(f"return {look}.checkVisibility()")
        wait_for(lambda: "its driver is gone" in browser.text())
        files.write("finished", **RECORD)
        wait_for(lambda: browser.script("return document.querySelector('.badge').textContent") == "finished")
        assert browser.script("return window.pwned === undefined") and browser.errors() == []
        browser.refuses_scripts()


@pytest.mark.long
@pytest.mark.parametrize("width", [400, 1100])
def test_no_page_is_wider_than_a_phone(width: int, storage: Path, browser: Browser) -> None:
    files = search(storage / ("a-name-" * 14), space={f"a_long_hyperparameter_{i}": "0..1" for i in range(9)})
    comparison = RunFiles(storage / "both", COMPARISON)
    comparison.write("running", algorithms=["fedproto", "local"], scenario_name="digits-w4")
    search(storage / "both" / "fedproto")
    with served(storage) as base, files.lock(), browser.wide(width, 800, width < 500):
        browser.open(f"{base}/?token={TOKEN}", "compare the chosen")
        for path in ("/", f"/run/{files.name}", "/run/both", f"/trial/{files.name}?trial=aa"):
            browser.open(base + path, "runs")
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth"), path
            fits = "[...document.querySelectorAll('#top .scroll')].every(s => s.scrollWidth <= s.clientWidth)"
            assert browser.script(f"return {fits}") or width < 500 or files.name in path, path


@pytest.mark.long
def test_chosen_runs_are_set_beside_one_another(storage: Path, browser: Browser) -> None:
    search(storage / "other", "finished", scheduler="none")
    search(storage / "third", "finished")
    with served(storage) as base:
        browser.open(f"{base}/?token={TOKEN}", "compare the chosen")
        for name in ("done", "other"):
            browser.script(f"document.querySelector('input[type=checkbox][value={name}]').click()")
        browser.press("//input[@name='text']", "nothing like it")
        wait_for(lambda: "2 of 3 runs" in browser.text())  # what is chosen stays
        browser.press("//button[@type='submit']")
        wait_for(lambda: "default, fresh seeds" in browser.text(), 240)
        assert "done" in browser.text() and "other" in browser.text() and "third" not in browser.text()
        assert browser.script("return location.search") == "?run=done&run=other"


def test_a_page_that_lost_its_server_says_so(storage: Path, browser: Browser) -> None:
    with served(storage) as base:
        browser.open(f"{base}/?token={TOKEN}", "compare the chosen")
        wait_for(lambda: browser.script("return document.getElementById('link').textContent") == "live")
    wait_for(lambda: browser.script("return document.getElementById('link').textContent") != "live")
