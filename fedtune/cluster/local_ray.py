"""The Ray that a command starts: the place of its files, the rights on its token, its dashboard, and its end.

A Ray that was running before is not touched here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ray.exceptions import RayTaskError

from fedtune.cluster import ray_processes
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import say

LOOK = 0.5  # seconds between looks at Ray's services
LATER = 10.0  # seconds after Ray's start in which trials load what trains, and the dashboard waits
NICE = 19  # of the dashboard; Ray's workers have 15: it takes little time from those that train first
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # where Ray looks for a token before it looks into the home
PATIENCE = 4.0  # seconds for a driver to save its results and end by itself once a Ray process has died
SOCKET = "/ray/session_2026-11-26_06-58-18_123456_1234567/sockets/plasma_store"  # the longest path of Ray's sockets
LONGEST = (103 if sys.platform == "darwin" else 107) - len(SOCKET)  # bytes of the folder that Ray's files go to
ROOM = 64 * 2**20  # bytes that Ray's logs may need there

# where Ray's files go


def temp_folder() -> str:
    """The folder for Ray's sockets and logs: in RAY_TMPDIR, else as Ray has it in TMPDIR or /tmp.

    If Ray cannot use TMPDIR, for instance because a socket's path would be too long, /tmp is used and a line says so.
    UserError if neither can be used, or if RAY_TMPDIR, which is meant for Ray, cannot.
    """
    rule = f"a folder for Ray must have a path of at most {LONGEST} bytes without spaces, and room to write"
    if given := os.environ.get("RAY_TMPDIR"):
        if why := _unfit(Path(given).parent if not Path(given).exists() else Path(given), given):
            raise UserError(f"{rule}, but RAY_TMPDIR is {given!r}: {why}; give another, like /tmp")
        return str(Path(given).absolute() / "ray")
    left = ""
    if (given := os.environ.get("TMPDIR", "")) and sys.platform == "linux":
        if not (why := _unfit(Path(given), given)):
            return str(Path(given).absolute() / "ray")
        left = f"TMPDIR is {given!r}: {why}"
    if why := _unfit(Path("/tmp"), "/tmp"):
        raise UserError(f"{rule}, but {left or '/tmp cannot be used'} ({why}); set RAY_TMPDIR to another")
    if left:
        say(f"note: {left}; Ray's files go to /tmp instead; RAY_TMPDIR chooses another folder")
    return "/tmp/ray"


def _unfit(folder: Path, given: str) -> str:
    """Why Ray cannot keep its files in a folder that may not exist yet; "" if it can."""
    whole = str(Path(given).absolute())
    if len(os.fsencode(whole)) > LONGEST:
        return f"its path has {len(os.fsencode(whole))} bytes, too many for Ray's sockets"
    if any(letter.isspace() for letter in whole):
        return "its path has a space, which breaks the commands of Ray's workers"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror})"
    return f"only {free >> 20} MiB are free there, and Ray's logs may need {ROOM >> 20}" if free < ROOM else ""


# its token and its dashboard


def keep_token_private() -> None:
    """Create the user's token file, or restrict its rights, before Ray writes it with the umask's rights.

    Ray uses an existing file.  A token or a file that the environment names is left to the user.
    """
    if not _asks_for_token() or any(map(os.environ.get, TOKENS)):
        return
    file = Path.home() / ".ray" / "auth_token"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with tempfile.NamedTemporaryFile("w", dir=file.parent) as made:  # 0600
                made.write(secrets.token_hex(32))
                made.flush()
                os.link(made.name, file)  # whole or not at all; another process may be as far
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except OSError:
        pass  # the home cannot be written to: Ray reports it


def _asks_for_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"


def said_of_dashboard(url: str) -> str:
    """The line with the dashboard's address, and the command that prints its token, ready to paste."""
    beside = Path(sys.executable).with_name("ray")  # the command of this environment, active or not
    command = str(beside) if beside.exists() and shutil.which("ray") != str(beside) else "ray"
    return f"dashboard: http://{url}" + (f" (its token: {command} get-auth-token)" if _asks_for_token() else "")


@contextmanager
def dashboard(running: str = "", file: Path | None = None) -> Iterator[None]:
    """Start the dashboard of our Ray once trials have begun, because starting it takes seconds of every processor.

    A search that ends before that has no dashboard.
    running: the address of one that runs already.  file: holds the address meanwhile, for who reads the run's folder.
    """
    over = threading.Event()

    def show() -> None:
        if sys.platform == "linux":  # where a thread has a priority, and what it starts has the same
            os.nice(NICE)
        if over.wait(LATER):
            return
        try:
            url = running or ray_processes.start_dashboard()
            if not running:
                say(said_of_dashboard(url))
            with _kept(f"http://{url}", file):
                over.wait()
        except Exception as error:
            said = (str(error).splitlines() or [type(error).__name__])[-1]
            say(f"note: Ray's dashboard did not start: {said[:200]}")
            over.wait()
        if not running:
            ray_processes.end_dashboard()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        over.set()
        shown.join()


@contextmanager
def _kept(line: str, file: Path | None) -> Iterator[None]:
    """The file holds this line meanwhile, if it can be written."""
    with suppress(OSError):
        if file:
            file.write_text(line + "\n")
    yield
    with suppress(OSError):
        if file:
            file.unlink(missing_ok=True)


# its end


@contextmanager
def watched() -> Iterator[None]:
    """End the process with a last message if a service of the Ray that it started dies meanwhile.

    Without this a driver would wait a minute at its next call of Ray, and then be aborted.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            dead = ray_processes.dead_service()
            if dead and not over.wait(PATIENCE) and ray_processes.dead_service() == dead:
                _end(dead)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def spoken_to() -> Iterator[None]:
    """Guard calls of Ray: if the Ray that this process started has died, end with a last message.

    A process that passes data to a dead Ray is ended at once, with status 1.  A live node that was taken for dead, as
    on a busy machine, ends a moment after its driver has seen errors.
    """
    _end_if_dead()
    try:
        yield
    except (UserError, RayTaskError):  # of the task itself
        raise
    except Exception:
        until = time.monotonic() + PATIENCE
        while ray_processes.started_here() and time.monotonic() < until:
            _end_if_dead()
            time.sleep(LOOK / 5)
        raise
    _end_if_dead()  # Tune says only that trials failed, not what died


def _end_if_dead() -> None:
    if dead := ray_processes.dead_service():
        _end(dead)


def _end(dead: str) -> None:
    interrupting.end(f"Ray's {dead} has died, and nothing can continue without it")
