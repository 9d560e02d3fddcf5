"""Run a Flower app once, with a trial's values, and report every round.

    python flower_child.py APP.json

It runs in the interpreter that has Flower, so only Python's own modules and flwr are imported here, never fedtune.
`flower.py` says in the file what runs: the app's folder and components, its run config with the trial's values, its
clients; and gives it ENVIRONMENT.  A round is a line `fedtune {…}` in the file that FEDTUNE_ROWS names, else on stdout.

It works with the strategies of today (`flwr.serverapp.strategy`) and with those before (`flwr.server.strategy`).  What
it uses of Flower beyond its documentation, and what for:

    Result.__init__                                     metrics of a round when a strategy of today has them
    History.add_…                                       the same for a strategy of before
    server.fit_clients, server.evaluate_clients         results of a strategy of before in one order: sums depend on it
    in_memory_linkstate.generate_rand_int_from_bytes    the numbers of nodes: who is sampled depends on them
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import hashlib
import importlib
import itertools
import json
import math
import numbers
import os
import platform
import random
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONHASHSEED": "0",  # of the processes that Ray starts for clients
}
REGISTERED = 60.0  # seconds until all nodes must have registered
ROWS = "FEDTUNE_ROWS"
CPUS, GPU_SHARE = "FEDTUNE_CPUS", "FEDTUNE_GPU_SHARE"  # that the trial has
STATE = "fedtune"  # the record of a client's state that counts its messages; the app does not see it
FAILURE = "a client's code raised "
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
TEMPORARY = "fedtune-flower-"
LATE = "timed out during startup"  # says Ray where its node needs more than 15 s, or 30, as on a busy machine
FAILED, WRONG = 1, 2  # exit statuses; the last is for what would be wrong in every trial
Value = Any  # of a run config: bool, int, float or str
App = dict[str, Any]  # what the file holds


def refuse(words: str) -> NoReturn:
    """End this process for what cannot be right in any trial, with one line for the user."""
    print(words, file=sys.stderr, flush=True)
    sys.exit(WRONG)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Value]:
    """A run config with the keys of nested tables joined by dots."""
    flat: dict[str, Value] = {}
    for name, value in config.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return flat


def backend(app: App) -> dict[str, Any]:
    """Flower's backend_config: the app's own, within the CPUs and the GPU that the trial has."""
    client, start = dict(app["client_resources"]), dict(app.get("init_args", {}))
    if given := os.environ.get(CPUS):
        start["num_cpus"] = max(1, math.floor(float(given)))
    if client["num_cpus"] > (limit := start.get("num_cpus", math.inf)):
        refuse(f"a client uses {client['num_cpus']} CPUs, but a trial has {limit}: give it more, or see client_cpus")
    share = float(os.environ.get(GPU_SHARE) or 1)
    if 0 < share < 1:  # of the one GPU that Ray sees here
        if client["num_gpus"] > share:
            refuse(f"a client uses {client['num_gpus']:g} of a GPU, but a trial has {share:g}: give trials more")
        client["num_gpus"] /= share
    return {"client_resources": client, "init_args": start}


# rows


class RoundRows:
    """A row for every round, written when the round is over: when the next training begins, or at the end."""

    def __init__(self, tolerant: bool) -> None:
        """Without a round.  tolerant: also of rounds in which clients failed."""
        self.round, self.tolerant = 0, tolerant
        self.metrics: dict[str, float] = {}
        self.lock = threading.Lock()  # a strategy of before trains each client in a thread

    def add(self, round: Any, kind: str, metrics: Any) -> None:
        """Metrics of a round that clients or the server measured; what is no number is left out."""
        if round < 1:  # Flower's evaluation before training
            return
        if round != self.round:
            self.end()
        self.round = round
        for name, value in metrics.items():
            if isinstance(value, numbers.Real) and not isinstance(value, bool):
                self.metrics[column(kind, name)] = float(value)

    def end(self) -> None:
        """Write the row of the round that is over, if there is one."""
        with self.lock:
            if self.metrics:
                row = json.dumps({"round": self.round, **self.metrics})
                with open(os.environ.get(ROWS, "/dev/stdout"), "a", encoding="utf-8") as file:
                    file.write(f"fedtune {row}\n")
            self.metrics = {}


def column(kind: str, name: str) -> str:
    """A metric's name in rows: client:eval-acc is client_eval_acc."""
    return re.sub(r"\W", "_", f"{kind}_{name}")


class _Reporting(dict):
    """A dictionary from rounds to metrics that reports what is put into it."""

    def __init__(self, rows: RoundRows, kind: str) -> None:
        """kind: who measures them: client, server or train."""
        super().__init__()
        self.report = lambda round, metrics: rows.add(round, kind, metrics)

    def __setitem__(self, round: int, metrics: Any) -> None:
        super().__setitem__(round, metrics)
        self.report(round, metrics)

    def __reduce__(self) -> Any:  # copies and pickles are plain dictionaries
        return dict, (dict(self),)


def report_results(rows: RoundRows) -> None:
    """Report from the strategies of today, which keep their metrics in a Result."""
    try:
        from flwr.serverapp.strategy import Result
    except ImportError:  # Flower before 1.22
        return

    def init(self: Any, *args: Any, before: Any = Result.__init__, **named: Any) -> None:
        before(self, *args, **named)
        self.train_metrics_clientapp = _Reporting(rows, "train")
        self.evaluate_metrics_clientapp = _Reporting(rows, "client")
        self.evaluate_metrics_serverapp = _Reporting(rows, "server")

    Result.__init__ = init


def report_history(rows: RoundRows) -> None:
    """Report from the strategies before, whose server keeps a History; and give them their results in one order."""
    try:
        from flwr.server import server
        from flwr.server.history import History
    except ImportError:
        return

    def added(before: Any, kind: str, losses: bool, self: Any, server_round: int, *args: Any, **named: Any) -> None:
        before(self, server_round, *args, **named)
        (value,) = (*args, *named.values())
        rows.add(server_round, kind, {"loss": value} if losses else value)

    def in_order(before: Any, *args: Any, **named: Any) -> Any:
        with kept_random():
            results, failures = before(*args, **named)
        return sorted(results, key=lambda result: int(result[0].cid)), failures

    for what, kind in (("distributed_fit", "train"), ("distributed", "client"), ("centralized", "server")):
        for name in (f"add_metrics_{what}", f"add_loss_{what}"):
            if hasattr(History, name):
                own = functools.partialmethod(functools.partial(added, getattr(History, name), kind, "loss" in name))
                setattr(History, name, own)
    for name in ("fit_clients", "evaluate_clients"):
        setattr(server, name, functools.partial(in_order, getattr(server, name)))


# random numbers


def seed_all(*parts: Any) -> None:
    """Seed Python's random numbers, NumPy's, and PyTorch's where it is in use."""
    seed = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextlib.contextmanager
def kept_random() -> Iterator[None]:
    """The state of the server's random numbers as it was before: threads of Ray's and Flower's draw while it waits."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    states = random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()
    yield
    random.setstate(states[0])
    if numpy:
        numpy.random.set_state(states[1])
    if torch:
        torch.set_rng_state(states[2])


def number_nodes() -> None:
    """Number nodes in the order of their partitions; else their ids are random, and with them who is sampled."""
    with contextlib.suppress(ImportError):
        from flwr.server.superlink.linkstate import in_memory_linkstate as state

        if hasattr(state, "generate_rand_int_from_bytes"):
            count = itertools.count(1000)
            state.generate_rand_int_from_bytes = lambda *args, **named: next(count)


# the two apps


def load(component: str, folder: str) -> Any:
    """The object that "module:object" names, from the app's folder."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module, _, name = component.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def run_client(component: str, folder: str, config: dict[str, Value], seed: int, message: Any, context: Any) -> Any:
    """The app's client with the trial's run config; its draws depend on the seed, the client and its message."""
    from flwr.common import ConfigRecord

    seed_all(seed, "client")
    app = load(component, folder)
    count = context.state.pop(STATE, {"messages": 0})["messages"]
    seed_all(seed, "client", context.node_config.get("partition-id"), count)
    own = with_config(context, config)
    try:
        reply = app(message=message, context=own)
    except Exception as error:
        raise RuntimeError(FAILURE + where(error, folder)) from error
    context.state = own.state
    context.state[STATE] = ConfigRecord({"messages": count + 1})
    return reply


def run_server(
    server: Any, config: dict[str, Value], seed: int, nodes: int, rows: RoundRows, *, grid: Any, context: Any
) -> None:
    """The app's server with the trial's run config; it starts when all nodes are there, or round 1 trains fewer."""
    watch(grid, rows)
    until = time.monotonic() + REGISTERED
    while len(ids := grid.get_node_ids()) < nodes:
        if time.monotonic() > until:
            raise RuntimeError(f"only {len(ids)} of {nodes} clients have registered after {REGISTERED:.0f} s")
        time.sleep(0.02)
    if ids != list(range(ids[0], ids[0] + nodes)):
        print("this Flower numbers its nodes at random: where clients are sampled, a seed does not repeat")
    seed_all(seed, "server")
    server(grid=grid, context=with_config(context, config))
    rows.end()


def with_config(context: Any, config: dict[str, Value]) -> Any:
    """A context with these values over its run config."""
    own = copy.copy(context)
    own.run_config = {**context.run_config, **config}
    return own


def watch(grid: Any, rows: RoundRows) -> None:
    """See the messages of a grid: training ends the row before, replies come in order, a client's error is told."""
    push, pull, exchange, node_ids = grid.push_messages, grid.pull_messages, grid.send_and_receive, grid.get_node_ids

    def push_messages(messages: Iterable[Any]) -> Any:
        messages = list(messages)
        if any(message.metadata.message_type.startswith("train") for message in messages):
            rows.end()
        return push(messages)

    def pull_messages(*args: Any, **named: Any) -> list[Any]:
        replies = list(pull(*args, **named))
        for reply in () if rows.tolerant else replies:
            if reply.has_error():
                at = sorted(node_ids()).index(reply.metadata.src_node_id)
                fail(f"client {at} failed, so a mean would be of fewer clients: {last(reply.error.reason)}")
        return in_order(replies)

    def send_and_receive(messages: Iterable[Any], *args: Any, **named: Any) -> list[Any]:
        messages = list(messages)  # which may draw
        with kept_random():
            replies = in_order(exchange(messages, *args, **named))
        if len(replies) < len(messages) and not rows.tolerant:
            some = f"only {len(replies)} of {len(messages)} clients answered in time"
            fail(f"{some}, so a mean would be of fewer; give the strategy a longer timeout")
        return replies

    def in_order(replies: Iterable[Any]) -> list[Any]:
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    grid.push_messages, grid.pull_messages = push_messages, pull_messages
    grid.send_and_receive, grid.get_node_ids = send_and_receive, lambda: sorted(node_ids())


def last(reason: str) -> str:
    """What a client raised, out of the report of Flower and Ray about it, which is one of many lines."""
    line = [line for line in reason.splitlines() if line.strip()][-1:] or [reason]
    return line[0].rpartition(FAILURE)[2].rstrip("'>")


def fail(reason: str) -> None:
    """End this process, and Ray's with it.  Strategies would catch an exception and go on with fewer clients."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(FAILED)


def where(error: BaseException, folder: str) -> str:
    """An error with the last place of it in the app's own files."""
    told = f"{type(error).__name__}: {error}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
    return f"{own[-1].filename}:{own[-1].lineno}: {told}" if own else told


# Ray


def own_ray(start: dict[str, Any], folder: str) -> dict[str, Any]:
    """Arguments that start a Ray of the trial's own, apart from the one that runs the trial, with a token of its own.

    The folder that Ray is given it opens to everyone, so it is one inside ours, which nobody else can enter.
    """
    token = Path(folder) / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)  # not in the home, which may be read-only
    return {**start, "address": "local", "_temp_dir": f"{folder}/r", "include_dashboard": False}


def temporary_folder() -> str:
    """A folder for Ray's files, locked while this process lives.  Those of killed processes are removed.

    Ray's sockets have its path in their names, which may have a hundred letters.
    """
    parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 18 else "/tmp")
    for left in parent.glob(f"{TEMPORARY}*"):
        if locked(left):
            shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix="fedtune-", dir=parent))
    locked(new)
    return str(new.rename(parent / new.name.replace("fedtune-", TEMPORARY)))  # others see it when it is locked


def locked(folder: Path) -> int:
    """The folder, opened and locked; 0 if another process holds it, or if it is not there."""
    try:
        opened = os.open(folder, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0
    return opened


# the program


def import_all(app: App) -> tuple[Any, Any]:
    """Flower's `run_simulation` and the app's server; the client is imported too, so that it fails here if it does."""
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        advice = "install it there: pip install 'flwr[simulation]', or name another interpreter by python = PATH"
        refuse(f"{sys.executable} cannot import Flower's simulation ({error}); {advice}")
    for name in ("clientapp", "serverapp"):
        try:
            found = load(app[name], app["folder"])
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            refuse(f"{name} {app[name]!r} cannot be imported: {where(error, app['folder'])}")
    return run_simulation, found


def versions() -> dict[str, str]:
    """What the app runs on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("flwr", "ray", "numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def main(app: App, check: bool) -> None:
    """Run the app, or only import it and print the versions as JSON."""
    backend_config = backend(app)
    seed_all(app["seed"], "import")
    run_simulation, server = import_all(app)
    if check:
        print(json.dumps(versions()))
        return
    rows = RoundRows(app["tolerant"])
    report_results(rows)
    report_history(rows)
    number_nodes()
    cpus = max(1, int(backend_config["client_resources"]["num_cpus"]))
    os.environ.update(dict.fromkeys(THREADS, str(cpus)))
    folder = temporary_folder()
    backend_config["init_args"] = own_ray(backend_config["init_args"], folder)
    try:
        run_simulation(
            server_app=functools.partial(run_server, server, app["config"], app["seed"], app["clients"], rows),
            client_app=functools.partial(run_client, app["clientapp"], app["folder"], app["config"], app["seed"]),
            num_supernodes=app["clients"],
            backend_config=backend_config,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def isolate(folder: str) -> None:
    """See the app's modules, and none of those beside this file."""
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder, *(entry for entry in sys.path if os.path.abspath(entry) != own)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    own_app = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    own_app["config"] = flatten(own_app["config"])  # as Flower hands it to apps
    isolate(own_app["folder"])
    try:
        main(own_app, "--check" in sys.argv)
    except Exception:
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if LATE in traceback.format_exc():  # fedtune tries a trial again that is ended from outside
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler raises SystemExit, which would wait as below
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(FAILED)  # at once: Flower's thread for the server would wait for clients, and Python for it
