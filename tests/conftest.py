"""One thread: the suite's tensors are tiny, and sums come out in the same order everywhere.  One width of tables."""

import compileall
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray
import torch
from _pytest.assertion import rewrite
from filelock import FileLock
from support.searches import MOMENTS, begin_search, copy_at
from support.time_limit import time_limit
from support.waiting import wait_for

from fedtune.cluster import local_ray, ray_start
from fedtune.engine import executor_choice
from fedtune.user_code import user_files

gc.disable()  # until the tests are found: of what that makes nothing is garbage, and looking takes a third of the time
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # also where a test starts a process: on a busy machine two wait for one another
os.environ["COLUMNS"] = "160"  # as where there is no terminal; pytest-xdist says otherwise to its workers

PROCESSES = {"ray", "subprocess", "multiprocessing", "nbclient", "begin_search"}  # names of what starts them
RAY = {"one_ray", "no_ray", "undisturbed", "interrupted"}  # fixtures that do
QUICK = ("core", "data", "nn", "experiment", "tracing", "runs")  # folders of what needs neither
PRODUCTS = ("engine", "trainables")  # folders in which a product of parameters is run in part


def pytest_configure(config: pytest.Config) -> None:
    """Ray's processes and our commands are forks of one, which saves imports: by default with `-n`, on Linux.

    One for all of pytest's workers (support/forked/server.py); they are forks of it, too.  FEDTUNE_TEST_FORKS=1 asks
    for it always, 0 never.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script: tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return  # of pytest-xdist, whose controller did what follows
    sys.dont_write_bytecode = False  # hundreds of processes import fedtune: one is to compile it
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    many = bool(getattr(config.option, "numprocesses", None))
    saves = many and sys.platform == "linux" and config.option.markexpr != "quick"
    if os.environ.get("FEDTUNE_TEST_FORKS", str(int(saves))) == "1":
        begin_forks(config)
    elif many:
        compile_all(config)


def begin_forks(config: pytest.Config) -> None:
    """Start the server of forks, and end it with the session."""
    forked, folder = Path(__file__).parent / "support" / "forked", tempfile.mkdtemp(prefix="fedtune-forks-")
    os.environ["FEDTUNE_FORKS"] = f"{folder}/socket"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(forked), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen([sys.executable, str(forked / "server.py"), f"{folder}/socket"], stdin=subprocess.PIPE)
    if getattr(config.option, "numprocesses", None):
        compile_all(config)  # meanwhile, for all of them
        wait_for(lambda: server.poll() is not None or Path(folder, "socket").exists())
        os.environ["FEDTUNE_FORK"] = "yes"

    def over() -> None:
        server.communicate()
        shutil.rmtree(folder)

    config.add_cleanup(over)


def compile_all(config: pytest.Config) -> None:
    """Compile what is tested and, as pytest does it, the tests; in a fresh clone every worker would."""
    tests = Path(__file__).parent
    for name in ("fedtune", "trainables", "analysis", "search_spaces", "benchmarks", "tests/support"):
        compileall.compile_dir(tests.parent / name, quiet=1)
    state = config.stash[rewrite.assertstate_key]
    for file in tests.rglob("test_*.py"):
        compiled = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(compiled.parent) and rewrite._read_pyc(file, compiled, state.trace) is None:
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, compiled)


def starts(item: pytest.Item) -> bool:
    """Whether a test may start Ray or another process, by its fixtures and by what its module has imported."""
    names = vars(getattr(item, "module", None) or item.parent)
    return bool(RAY & {*getattr(item, "fixturenames", ())} or PROCESSES & {*names})


def off_the_diagonal(item: pytest.Item) -> bool:
    """Whether a test of what is trained, with two or more tables of parameters, is a row that README's command spares.

    Of their product it runs a diagonal, which has every row of each table: an algorithm's executors are held to one
    another by its own laws, and so are an engine's settings.
    """
    tables = [mark.args for mark in item.iter_markers("parametrize")]
    if len(tables) < 2 or item.path.parent.name not in PRODUCTS:
        return False
    indices = item.callspec.indices  # type: ignore[attr-defined]
    at = [
        (indices[re.split(r"\W+", names)[0] if isinstance(names, str) else names[0]], len(rows))
        for names, rows in tables
    ]
    return not any(all(row == t % length for row, length in at) for t in range(max(length for _, length in at)))


WITH_RAY = pytest.StashKey[set[Path]]()


@pytest.hookimpl(tryfirst=True)  # before `-m quick` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is quick or long.  Files with one_ray come first, so that it ends early, then those with a process."""
    ray_files = config.stash[WITH_RAY] = {item.path for item in items if "one_ray" in getattr(item, "fixturenames", ())}
    slow = {item.path for item in items if starts(item)}
    for item in items:
        if not starts(item) and item.path.parent.name in QUICK:
            item.add_marker("quick")
        if off_the_diagonal(item):
            item.add_marker("long")
    items.sort(key=lambda item: (item.path not in ray_files, item.path not in slow))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From here on garbage is looked for, but not among the tests themselves."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """After the last file with one_ray it ends: an idle Ray takes 3 % of a processor, and each worker has one."""
    if item.path not in item.config.stash[WITH_RAY]:
        ray.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that does not end fails, just after pytest has shown the stacks of all threads."""
    with time_limit(float(item.config.getini("faulthandler_timeout")) + 1):
        return (yield)


@pytest.fixture(scope="session")
def _ray_ends() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held
        ray.shutdown()


@pytest.fixture(scope="module")
def one_ray(_ray_ends: ExitStack) -> None:
    """One Ray for all searches of this process: starting it takes longer than most of them.

    A search uses the Ray that its process is connected to and leaves it as it is (ray_start.connected).
    """
    if not ray.is_initialized():
        _ray_ends.close()
        folder = _ray_ends.enter_context(local_ray.folder())
        with ray_start.settings():
            ray_start._connect(None, folder=folder)


@pytest.fixture(scope="module")
def no_ray() -> None:
    """For tests that connect to a Ray of their own."""
    ray.shutdown()


@pytest.fixture(autouse=True)
def users_code_is_run_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not 1,000 times, which takes a second; tests/engine/test_attached.py does that with every kind of memory."""
    monkeypatch.setattr(executor_choice, "CALLS", 60)
    monkeypatch.setattr(executor_choice, "MANY_STEPS", executor_choice.STEPS)


@pytest.fixture(autouse=True)
def copies_are_forgotten() -> Iterator[None]:
    """What a test tells of copies of data is forgotten after it: many tests have the same data, each in its folder."""
    before = dict(user_files.copies)
    yield
    user_files.copies.clear()
    user_files.copies.update(before)


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts Ray, or uses the one there is, fails."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", never)


@pytest.fixture(scope="session")
def _reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that nothing disturbed, and copies of its folder while it ran: one for all of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reference"
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            process = begin_search(folder)
            for moment in MOMENTS:
                copy_at(moment, process, folder / "run", folder / f"after-{moment}")
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0, out
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def undisturbed(_reference: Path) -> Path:
    """The folder of a search that nothing disturbed, to be read only."""
    return _reference / "run"


@pytest.fixture(scope="session")
def interrupted(_reference: Path) -> dict[int, Path]:
    """Its folder as a SIGKILL would have left it after so many rounds, to be read only."""
    return {moment: _reference / f"after-{moment}" for moment in MOMENTS}
