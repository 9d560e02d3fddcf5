"""The Ray that a command starts: the place of its files, the rights on its token, its dashboard, and its end.

A Ray that was running before is not touched here.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from ray.exceptions import RayTaskError

from fedtune.cluster import ray_internals
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import say

LOOK = 0.5  # seconds between looks at Ray's services
LATER = 10.0  # seconds after Ray's start in which trials load what trains, and the dashboard waits
NICE = 19  # of the dashboard; Ray's workers have 15: it takes little time from those that train first
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # where Ray looks for a token before it looks into the home
PATIENCE = 4.0  # seconds for a driver to save its results and end by itself once a Ray process has died
PREFIX, MARK = "ft-", ".fedtune-ray"  # of the folder with Ray's files, and a file in it, locked while its driver lives
INSIDE = "r"  # the folder in it that Ray is given, and opens to everyone: none of them gets so far
SOCKET = "/session_2026-11-26_06-58-18_123456_1234567/sockets/plasma_store"  # the longest path of Ray's sockets
# bytes of where it is made
LONGEST = (103 if sys.platform == "darwin" else 107) - len(f"/{PREFIX}12345678/{INSIDE}{SOCKET}")
NEW = 60.0  # seconds in which a folder may not be locked yet

# where Ray's files go


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder for Ray's sockets, logs and token that only this user can enter, removed afterwards.

    Ray's own /tmp/ray is open to everyone: others could replace a log by a link to a file of ours, or tell a driver to
    bring its token to a port of theirs.  What drivers that were killed have left is removed, too.
    """
    parent = _parent()
    _remove_left(parent)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        _require_private(made)
        locks = {"RAY_TMPDIR": str(made)}  # Tune's, in /tmp/_ray_lockfiles, which belongs to whoever was there first
        with FileLock(made / MARK), ray_internals.environment(_token(made) | locks):
            ray_internals.forget_token()
            yield made
    finally:
        ray_internals.forget_token()
        ray_internals.end_those_of(made)
        shutil.rmtree(made, ignore_errors=True)


def _require_private(made: Path) -> None:
    """UserError unless a folder is ours alone, which some network drives and foreign file systems cannot hold."""
    found = made.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        has = f"has the owner {found.st_uid} and the mode {stat.S_IMODE(found.st_mode):04o}"
        advice = "set RAY_TMPDIR to a folder of another file system"
        raise UserError(f"Ray's folder must be its user's alone, but {made} {has}; {advice}")
    for above in made.resolve().parents:
        if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            say(f"note: everyone may replace what is in {above}, Ray's folder too; RAY_TMPDIR chooses another")


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}????????"):
        with suppress(OSError, Timeout):
            found = left.lstat()
            if found.st_uid == os.geteuid() and (left / MARK).exists() and found.st_mtime < time.time() - NEW:
                with FileLock(left / MARK, timeout=0):
                    shutil.rmtree(left, ignore_errors=True)


def _parent() -> Path:
    """Where Ray's folder is made: in RAY_TMPDIR, else in TMPDIR or /tmp, as Ray has it.

    If Ray cannot use TMPDIR, /tmp is used and a line says so; UserError if it cannot use RAY_TMPDIR, or /tmp either.
    """
    if given := os.environ.get("RAY_TMPDIR", ""):
        if (Path(given) / MARK).exists():  # of the Ray that has started this process, and may end before it
            given = str(Path(given).parent)
        with suppress(OSError):
            Path(given).mkdir(exist_ok=True)
    of_system = os.environ.get("TMPDIR", "") if sys.platform == "linux" and not given else ""
    if of_system and (why := _unfit(of_system)):
        say(f"note: TMPDIR is {of_system!r}: {why}; Ray's files go to /tmp instead; RAY_TMPDIR chooses another folder")
        of_system = ""
    found = given or of_system or "/tmp"
    if why := _unfit(found):
        raise UserError(f"Ray's files need a folder that it can use, but got {found!r}: {why}; set RAY_TMPDIR")
    return Path(found).absolute()


def _unfit(given: str) -> str:
    folder = Path(given).absolute()
    if (size := len(os.fsencode(folder))) > LONGEST:
        return f"its path has {size} bytes, and Ray's sockets leave room for {LONGEST}"
    if any(letter.isspace() for letter in str(folder)):
        return "its path has a space, which breaks the commands of Ray's workers"
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"it cannot be written to ({error.strerror})"
    return ""


# its token and its dashboard


def _token(folder: Path) -> dict[str, str]:
    """The variable that names the file with this Ray's token to its processes, and to this one.

    It is a new token, or that of the user's file: a Ray whose file goes while it runs waits forever.
    """
    if not _asks_for_token() or os.environ.get(TOKENS[0]):
        return {}
    given = os.environ.get(TOKENS[1])
    try:
        token = Path(given).read_text() if given else secrets.token_hex(32)
    except (OSError, ValueError) as error:
        raise UserError(f"{TOKENS[1]} must name a file with a token, but got {given!r} ({error}); unset it") from error
    file = folder / "token"
    file.touch(0o600)
    file.write_text(token)
    return {TOKENS[1]: str(file)}


def keep_token_private() -> None:
    """Restrict the rights on the token for clusters in the user's home, which Ray writes with the umask's rights."""
    file = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)


def _asks_for_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"


def said_of_dashboard(url: str) -> str:
    """The line with the dashboard's address, and the command that prints its token, ready to paste."""
    if not _asks_for_token():
        return f"dashboard: http://{url}"
    file = "" if os.environ.get(TOKENS[0]) else os.environ.get(TOKENS[1])
    return f"dashboard: http://{url} (its token: {shlex.join(['cat', file]) if file else 'ray get-auth-token'})"


@contextmanager
def dashboard(running: str = "", file: Path | None = None) -> Iterator[None]:
    """Start the dashboard of our Ray once trials have begun, because starting it takes seconds of every processor.

    A search that ends before that has no dashboard.
    running: the address of one that runs already.  file: holds the address meanwhile, for who reads the study's folder.
    """
    over = threading.Event()

    def show() -> None:
        if sys.platform == "linux":  # where a thread has a priority, and what it starts has the same
            os.nice(NICE)
        if over.wait(LATER):
            return
        try:
            url = running or ray_internals.start_dashboard()
            if not running:
                say(said_of_dashboard(url))
            with suppress(OSError):
                if file:
                    file.write_text(f"http://{url}\n")
        except Exception as error:
            said = str(error).strip()  # many lines: the end of its log, which says little
            why = said if said and "\n" not in said else "it ended, or the machine is too busy"
            say(f"note: Ray's dashboard did not start: {why}; the search goes on without it")
        over.wait()
        with suppress(OSError):
            if file:
                file.unlink(missing_ok=True)
        if not running:
            ray_internals.end_dashboard()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        over.set()
        shown.join()


# its end


@contextmanager
def watched() -> Iterator[None]:
    """End the process with a last message if a service of the Ray that it started dies meanwhile.

    Without this a driver would wait a minute at its next call of Ray, and then be aborted.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            if ray_internals.dead_service() and not over.wait(PATIENCE):
                _end_if_dead()

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
        while ray_internals.started_here() and time.monotonic() < until:
            _end_if_dead()
            time.sleep(LOOK / 5)
        raise
    _end_if_dead()  # Tune says only that trials failed, not what died


def _end_if_dead() -> None:
    if dead := ray_internals.dead_service():
        interrupting.end(f"Ray's {dead} has died, and nothing can continue without it")
