"""A Ray that is started here: where its files go, how its token is shown, and what its driver says when it dies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL

import psutil
import pytest
import ray
from filelock import FileLock
from ray._private import worker
from ray._private.utils import validate_socket_filepath
from ray._raylet import AuthenticationTokenLoader
from ray.air._internal.filelock import RAY_LOCKFILE_DIR, TempFileLock

from fedtune.cluster import local_ray, ray_internals
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.user_code import command


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Ray of this process has lost its raylet; what is said of that when the process is ended."""
    told: list[str] = []

    def end(why: str) -> None:
        told.append(why)
        raise SystemExit(1)

    monkeypatch.setattr(local_ray, "PATIENCE", 0.01)
    monkeypatch.setattr(ray_internals, "started_here", lambda: True)
    monkeypatch.setattr(interrupting, "end", end)
    return told


@pytest.mark.parametrize(
    ("looks", "error"),
    [
        (["raylet"], AssertionError("something is asked of it")),  # Ray would end the process without a word
        ([None, "raylet"], None),  # trials that failed as it died are not what the search found
        # the raylet ends a moment after what it causes, which is not told as a bug
        ([None, None, None, "raylet"], OSError("Broken pipe")),
        ([None, None, None, "raylet"], ray.exceptions.LocalRayletDiedError()),
        ([None, None, None, "raylet"], ray.exceptions.RaySystemError("gone")),
    ],
)
def test_a_driver_whose_ray_has_died_says_so_and_ends(
    looks: list[str | None], error: Exception | None, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(looks)
    monkeypatch.setattr(local_ray, "PATIENCE", 300)
    monkeypatch.setattr(ray_internals, "dead_service", lambda: next(found))
    with pytest.raises(SystemExit), local_ray.spoken_to():
        if error:
            raise error
    assert dead == ["Ray's raylet has died, and nothing can continue without it"]


def test_errors_of_a_ray_that_lives_stay_what_they_are(dead: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_internals, "dead_service", lambda: None)
    for error in (UserError("a rule"), ValueError("ours"), ray.exceptions.WorkerCrashedError()):
        with pytest.raises(type(error)), local_ray.spoken_to():
            raise error
    assert not dead


def test_a_command_is_known_to_ray_as_no_worker_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def main(argv: list[str] | None = None) -> int:
        seen.append(os.environ.get("RAY_RAYLET_PID"))
        return 0

    for loaded, before in ((False, None), (True, None), (False, "7")):  # 7: the raylet of a worker that runs a command
        with monkeypatch.context() as m:
            if not loaded:
                m.delitem(sys.modules, "ray")
            m.setenv("RAY_RAYLET_PID", before or "")
            if before is None:
                m.delenv("RAY_RAYLET_PID")
            assert command.guarded(main)([]) == 0
    assert seen == [str(os.getpid()), None, "7"]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets TMPDIR and RAY_TMPDIR."""

    def place(**given: str) -> None:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return place


@pytest.fixture
def brief(place: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose path is short enough for sockets, where Ray's files go; the user has set no token."""
    folder = Path("/tmp") / f"ft{os.getpid()}"
    folder.mkdir()
    place(RAY_TMPDIR=str(folder))
    for name in (*local_ray.TOKENS, "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder)


def test_the_longest_folder_that_is_taken_has_room_for_rays_sockets() -> None:
    longest = "/" + "x" * (local_ray.LONGEST - 1)
    name = f"/{local_ray.PREFIX}{'x' * 8}/{local_ray.INSIDE}{local_ray.SOCKET}"  # with eight letters of tempfile
    validate_socket_filepath(longest + name)
    with pytest.raises(OSError, match="length cannot exceed"):
        validate_socket_filepath(longest + "x" + name)


def test_rays_files_go_where_its_own_variable_or_tmpdir_says(
    place: Callable[..., None], brief: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(brief)
    for given, want in (
        ({}, Path("/tmp")),
        ({"TMPDIR": str(brief)}, brief),
        ({"TMPDIR": "."}, brief),
        ({"TMPDIR": "/nowhere", "RAY_TMPDIR": f"{brief}/new"}, brief / "new"),
    ):
        place(**given)
        assert local_ray._parent() == want and capsys.readouterr() == ("", "")

    def never(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    place(TMPDIR="/nowhere")
    monkeypatch.setattr(local_ray.tempfile, "TemporaryFile", never)
    with pytest.raises(UserError, match="but got '/tmp': it cannot be written to .*; set RAY_TMPDIR"):
        local_ray._parent()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 60, "bytes, and Ray's sockets leave room for"),
        ("ä" * 25, "bytes, and Ray's sockets leave room for"),
        ("a b", "its path has a space"),
        ("missing", "it cannot be written to (No such file or directory)"),
        ("file", "it cannot be written to (Not a directory)"),
    ],
)
def test_a_tmpdir_that_ray_cannot_use_is_left_and_rays_own_refused(
    name: str, why: str, place: Callable[..., None], brief: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = brief / name
    folder.touch() if name == "file" else folder.mkdir() if name != "missing" else None
    place(TMPDIR=str(folder))
    assert local_ray._parent() == Path("/tmp")
    out, err = capsys.readouterr()
    assert not out and err.startswith("note: TMPDIR is ") and err.count("\n") == 1 and why in err
    place(RAY_TMPDIR=f"{folder}/in/it" if name == "missing" else str(folder))
    with pytest.raises(UserError, match="a folder that it can use, but got .*; set RAY_TMPDIR"):
        local_ray._parent()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, " (its token: ray get-auth-token)"),  # of a cluster: the one in the home
        ({"RAY_AUTH_TOKEN_PATH": "/tmp/ft-1/a b"}, " (its token: cat '/tmp/ft-1/a b')"),
        ({"RAY_AUTH_TOKEN_PATH": "/none", "RAY_AUTH_TOKEN": "x"}, " (its token: ray get-auth-token)"),
        ({"RAY_AUTH_MODE": "disabled"}, ""),
    ],
)
@pytest.mark.usefixtures("brief")
def test_the_dashboards_line_has_the_command_that_shows_its_token(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert local_ray.said_of_dashboard("host:1") == f"dashboard: http://host:1{said}"


# a folder that nobody else can enter


def by_another_user(command: str) -> int:
    """The exit status of a shell command of a user who is not this one; skips where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    return subprocess.run(["sh", "-c", command], user=65534, group=65534, extra_groups=[], stderr=DEVNULL).returncode


@pytest.mark.parametrize(
    "attack",
    [
        "rm -f {session}/logs/raylet.out && ln -s {victim} {session}/logs/raylet.out",
        "echo 6379 > {session}/gcs_server_port_1",
        "ls {made}",
        "cat {made}/token",
        "mv {made} {made}x",
        "mkdir {made}/session_latest",
    ],
)
def test_another_user_changes_and_reads_nothing_of_rays(attack: str, brief: Path) -> None:
    """Neither a log by a link to a file of ours, nor the port that a starting driver brings its token to."""
    brief.chmod(0o1777)  # as /tmp
    with local_ray.folder() as made:
        session = made / local_ray.INSIDE / "session_1"
        for folder in (session.parent, session, session / "logs"):
            folder.mkdir()
            folder.chmod(0o777)  # as Ray makes them
        (session / "logs" / "raylet.out").write_text("a log")
        words = attack.format(session=session, made=made, victim=Path(__file__))
        assert made.stat().st_mode & 0o777 == 0o700 and by_another_user(words) != 0
        assert (session / "logs" / "raylet.out").read_text() == "a log" and not any(session.glob("gcs*"))
        if "session_1" in words:  # open to everybody it is possible
            made.chmod(0o755)
            assert by_another_user(words) == 0
    assert not made.exists()


@pytest.mark.usefixtures("one_ray")
def test_all_files_of_a_ray_started_here_lie_in_such_a_folder() -> None:
    node = worker._global_node
    folder = Path(node.get_temp_dir_path()).parent
    held = folder.lstat()  # the one inside Ray opens to everyone
    assert (held.st_uid, held.st_mode & 0o777) == (os.geteuid(), 0o700)
    for path in (node.get_session_dir_path(), node.plasma_store_socket_name, node.raylet_socket_name):
        assert Path(path).resolve().is_relative_to(folder)
    named = [word for process in psutil.Process().children() for word in process.cmdline() if "/ray/session_" in word]
    assert not named


def test_what_a_killed_driver_left_goes_and_nothing_else(brief: Path) -> None:
    left = {n: brief / f"ft-{n}" for n in ("killed00", "young000", "users000", "longer-name", "running0", "others00")}
    for name, made in left.items():
        made.mkdir()
        (made / ("x" if name == "users000" else local_ray.MARK)).touch()
        if name != "young000":
            os.utime(made, (1, 1))
    root = os.geteuid() == 0
    if root:
        os.chown(left["others00"], 65534, 65534)
    with FileLock(left["running0"] / local_ray.MARK), local_ray.folder() as made:
        assert made.parent == brief
        gone = {left["killed00"], *([] if root else [left["others00"]])}
        assert {*brief.iterdir()} == {*left.values(), made} - gone
    assert {*brief.iterdir()} == {*left.values()} - gone


def test_a_file_system_without_owners_is_refused_and_an_open_folder_told_of(
    brief: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brief.chmod(0o777)  # without a sticky bit
    with local_ray.folder():
        assert f"note: everyone may replace what is in {brief}, Ray's folder too" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UserError, match=r"Ray's folder must be its user's alone, but .* mode 0700; set RAY_TMPDIR"):
        local_ray.folder().__enter__()
    assert not any(brief.iterdir())


@pytest.mark.usefixtures("brief")
def test_what_a_broken_start_has_left_running_ends_before_its_folder_goes() -> None:
    with pytest.raises(KeyboardInterrupt), local_ray.folder() as made:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"--log={made}"])
        raise KeyboardInterrupt
    assert not psutil.pid_exists(process.pid) and not made.exists()


# its token


def test_a_ray_started_here_has_a_token_of_its_own(brief: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the home cannot be written to, and beside another search."""
    monkeypatch.setenv("HOME", "/proc")
    with local_ray.folder() as one:
        file = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        token = file.read_text()
        assert file == one / "token" and file.stat().st_mode & 0o777 == 0o600 and len(token) == 64
        assert AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True) == token
        assert TempFileLock("x")._lock_dir == one / RAY_LOCKFILE_DIR  # not where others have theirs
        with monkeypatch.context() as process:  # another one
            process.delenv("RAY_AUTH_TOKEN_PATH")
            with local_ray.folder() as other:
                assert other.parent == brief and (other / "token").read_text() != token
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    for name, value in (("RAY_AUTH_TOKEN", "x"), ("RAY_AUTH_MODE", "disabled")):
        with monkeypatch.context() as given:
            given.setenv(name, value)
            with local_ray.folder() as folder:
                assert not (folder / "token").exists() and "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_the_users_token_file_is_used_and_may_go_meanwhile(brief: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that finds no token any more waits forever, without a word."""
    mine = brief / "mine"
    mine.write_text("a" * 64)
    # Python's copy alone: threads that Ray has left in this process end it where they find a token's file gone
    monkeypatch.setattr(os, "environ", os.environ | {"RAY_AUTH_TOKEN_PATH": str(mine)})
    with local_ray.folder() as folder:
        mine.unlink()
        assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]) == folder / "token"
        assert (folder / "token").read_text() == "a" * 64
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(mine)
    with pytest.raises(UserError, match=r"RAY_AUTH_TOKEN_PATH must name a file with a token, but got .*; unset it"):
        local_ray.folder().__enter__()


def test_a_clusters_token_in_the_home_is_nobody_elses_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    local_ray.keep_token_private()
    assert not any(tmp_path.iterdir())
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("x")
    file.chmod(0o644)  # as Ray writes it
    local_ray.keep_token_private()
    assert file.read_text() == "x" and file.stat().st_mode & 0o777 == 0o600
