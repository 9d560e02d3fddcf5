"""A Ray that is started here: where its files go, how its token is shown, and what its driver says when it dies."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.utils import validate_socket_filepath

from fedtune.cluster import local_ray, ray_processes, ray_start
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

    monkeypatch.setattr(local_ray, "PATIENCE", 0.3)
    monkeypatch.setattr(ray_processes, "started_here", lambda: True)
    monkeypatch.setattr(ray_processes, "dead_service", lambda: "raylet")
    monkeypatch.setattr(interrupting, "end", end)
    return told


DIED = ["Ray's raylet has died, and nothing can continue without it"]


def test_nothing_is_asked_of_a_ray_that_has_died(dead: list[str]) -> None:
    """Ray ends who hands it data then, with status 1 and without a word."""
    with pytest.raises(SystemExit), local_ray.spoken_to():
        pytest.fail("something is asked of it")
    assert dead == DIED


@pytest.mark.parametrize(
    "error",
    [
        OSError("Broken pipe"),
        ray.exceptions.LocalRayletDiedError(),
        ray.exceptions.RaySystemError("gone"),
        ConnectionError("refused"),
    ],
)
def test_an_error_that_its_death_explains_is_not_told_as_a_bug(
    error: Exception, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raylet ends a moment after what it causes."""
    looks = iter([None, None, None, "raylet"])
    monkeypatch.setattr(ray_processes, "dead_service", lambda: next(looks))
    with pytest.raises(SystemExit), local_ray.spoken_to():
        raise error
    assert dead == DIED


def test_trials_that_failed_as_it_died_are_not_what_the_search_found(
    dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, "gcs_server"])
    monkeypatch.setattr(ray_processes, "dead_service", lambda: next(looks))
    with pytest.raises(SystemExit), local_ray.spoken_to():
        pass
    assert dead == ["Ray's gcs_server has died, and nothing can continue without it"]


def test_errors_of_a_ray_that_lives_stay_what_they_are(dead: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_processes, "dead_service", lambda: None)
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


def test_a_busy_machines_node_is_given_more_time_than_ray_gives_it() -> None:
    wanted = {n: int(v) for n, v in ray_start.SETTINGS.items() if "health_check" in n}
    assert wanted["RAY_health_check_timeout_ms"] > 10_000 and wanted["RAY_health_check_failure_threshold"] > 5


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Sets TMPDIR and RAY_TMPDIR."""
    monkeypatch.chdir(tmp_path)

    def place(**given: str | None) -> None:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
            if value := given.get(name):
                monkeypatch.setenv(name, value)

    return place  # type: ignore[return-value]


@pytest.fixture
def brief() -> Any:
    """A folder whose path is short enough for sockets."""
    folder = Path("/tmp") / f"ft{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def test_the_longest_folder_that_is_taken_has_room_for_rays_sockets() -> None:
    longest = "/" + "x" * (local_ray.LONGEST - 1)
    validate_socket_filepath(longest + local_ray.SOCKET)
    with pytest.raises(OSError, match="length cannot exceed"):
        validate_socket_filepath(longest + "x" + local_ray.SOCKET)


def test_rays_files_go_where_its_own_variable_or_tmpdir_says(
    place: Callable[..., None], brief: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place()
    assert local_ray.temp_folder() == "/tmp/ray"
    place(TMPDIR=str(brief))
    assert local_ray.temp_folder() == f"{brief}/ray"
    place(TMPDIR="/nowhere", RAY_TMPDIR=f"{brief}/new")
    assert local_ray.temp_folder() == f"{brief}/new/ray"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 60, "bytes, too many for Ray's sockets"),
        ("ä" * 25, "bytes, too many for Ray's sockets"),
        ("a b", "its path has a space"),
        ("missing", "cannot be written to (No such file or directory)"),
        ("file", "cannot be written to (Not a directory)"),
        ("full", "0 MiB are free there, and Ray's logs may need 64"),
    ],
)
def test_a_tmpdir_that_ray_cannot_use_is_left_and_rays_own_refused(
    name: str,
    why: str,
    place: Callable[..., None],
    brief: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = brief / name
    folder.touch() if name == "file" else folder.mkdir() if name != "missing" else None
    if name == "full":
        usage = lambda at: SimpleNamespace(free=0 if "full" in str(at) else 10**12)  # noqa: E731
        monkeypatch.setattr(shutil, "disk_usage", usage)
    place(TMPDIR=str(folder))
    assert local_ray.temp_folder() == "/tmp/ray"
    out, err = capsys.readouterr()
    assert not out and err.startswith("note: TMPDIR is ") and err.count("\n") == 1
    assert why in err and "Ray's files go to /tmp instead; RAY_TMPDIR chooses another folder" in err
    place(RAY_TMPDIR=f"{folder}/in/it" if name == "missing" else str(folder))
    with pytest.raises(UserError, match=r"path of at most \d+ bytes without spaces.* RAY_TMPDIR is .*give another"):
        local_ray.temp_folder()


def test_a_relative_tmpdir_is_meant_from_here(place: Callable[..., None], brief: Path) -> None:
    os.chdir(brief)
    place(TMPDIR=".")
    assert local_ray.temp_folder() == f"{brief}/ray"


def test_where_nothing_is_fit_the_variable_to_set_is_named(
    place: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    place(TMPDIR="/nowhere")
    monkeypatch.setattr(local_ray.tempfile, "TemporaryFile", never)
    with pytest.raises(UserError, match="TMPDIR is '/nowhere': .* set RAY_TMPDIR to another"):
        local_ray.temp_folder()


@pytest.mark.parametrize(
    ("mode", "active", "said"),
    [
        (None, True, "dashboard: http://host:1 (its token: ray get-auth-token)"),
        (None, False, "dashboard: http://host:1 (its token: {ray} get-auth-token)"),
        ("disabled", True, "dashboard: http://host:1"),
    ],
)
def test_the_dashboards_line_has_the_command_that_shows_its_token(
    mode: str | None, active: bool, said: str, monkeypatch: pytest.MonkeyPatch, brief: Path
) -> None:
    (brief / "ray").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(brief / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: str(brief / "ray") if active else None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert local_ray.said_of_dashboard("host:1") == said.format(ray=brief / "ray")
