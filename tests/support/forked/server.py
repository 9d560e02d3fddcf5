"""A process that has imported what Ray's processes and our commands import, and becomes each of them by a fork.

The tests start hundreds, and importing PyTorch, Ray and the rest takes each of them seconds of processor time, more
than most searches of the tests.  Ray reads its settings from the environment when it is imported: for every set of
them that comes twice there is one more process, an importer, that has imported it so; for workers, which read their
node's too and are seldom alone there, from the first on.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from becoming import become
from keeping import Forks
from ours import ImportedAhead

AHEAD = (
    "torch torch._dynamo torch.fx.experimental.symbolic_shapes pandas pyarrow.parquet pyarrow.fs scipy.stats "
    "sklearn.mixture optuna pydantic.main pydantic.dataclasses pydantic.v1 pyarrow.json torch.utils.serialization "
    "aiohttp.web aiohttp_cors grpc.aio opentelemetry.exporter.prometheus opentelemetry.sdk.metrics "
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc opencensus.stats.stats "
    "opencensus.trace.execution_context prometheus_client.parser pyarrow.pandas_compat google.protobuf.struct_pb2 "
    "msgpack click pdb rich.layout filelock wcwidth requests jsonschema IPython yaml rich fsspec "
    "google.protobuf.descriptor_pb2"
).split()
PARTS = {  # what of Ray each kind of process imports; what else a worker does depends on the test
    "worker": (
        "ray ray.actor starlette.datastructures ray.tune.trainable ray.dag.class_node ray.dag.compiled_dag_node "
        "ray._private.arrow_serialization"
    ).split(),
    "agent": (
        "ray ray.dashboard.agent ray.dashboard.modules.job.job_agent ray.dashboard.modules.reporter.reporter_agent "
        "ray.dashboard.modules.aggregator.aggregator_agent ray.dashboard.modules.data.data_head "
        "ray.dashboard.modules.event.event_head ray.dashboard.modules.job.job_head ray.dashboard.modules.log.log_agent "
        "ray.dashboard.modules.metrics.metrics_head ray.dashboard.http_server_agent ray.util.state.common "
        "ray._private.runtime_env.agent.runtime_env_agent"
    ).split(),
    "other": (
        "ray ray.tune ray.train ray.dag.class_node ray.dag.compiled_dag_node ray._private.arrow_serialization "
        "ray.dashboard.head ray.job_submission ray._private.log_monitor ray.autoscaler._private.autoscaler "
        "ray.autoscaler.v2.autoscaler"
    ).split(),
}
OURS = {  # what of fedtune, for every process and for each kind; nothing that `python -m` is given
    "all": ("fedtune.cluster.worker",),
    "worker": ("fedtune.tuning.trainable", "fedtune.studies.ray_tasks"),
    "other": (
        "fedtune.commands.search",
        "fedtune.studies.search_study",
        "fedtune.tuning.driver",
        "fedtune.studies.comparison.plan",
    ),
}
BEFORE = ("-u",)  # what stands before a script of Ray's
OF_A_NODE = ("RAY_RAYLET_PID", "RAY_NODE_ID")  # what an agent reads long after it has imported Ray
OURS_AHEAD = ImportedAhead()
MESSAGE = 2**20  # bytes, at most
FAR_APART = 10_000  # ids, 6 ms; a worker draws some dozens
IDLE = 60.0  # seconds after which no other worker is expected on a node of Ray


@dataclass(frozen=True)
class Request:
    """What a process says of itself, the connection to it and its standard streams."""

    message: bytes
    connection: socket.socket
    streams: list[int]

    @property
    def asked(self) -> dict[str, Any]:
        """The message."""
        return json.loads(self.message)

    @property
    def whose(self) -> int:
        """The process that asks."""
        credentials = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])

    @property
    def settings(self) -> dict[str, str]:
        """The variables that Ray may read when it is imported."""
        later = OF_A_NODE if self.kind == "agent" else ()
        environ = self.asked["environ"]
        return {n: v for n, v in environ.items() if n.startswith(("RAY_", "TUNE_")) and n not in later}

    @property
    def kind(self) -> str:
        """Which of PARTS it is."""
        script = next((word for word in self.asked["words"] if word not in BEFORE), "")
        return "worker" if "/workers/" in script else "agent" if "/agent" in script else "other"

    def close(self) -> None:
        """It is another process's now."""
        self.connection.close()
        for stream in self.streams:
            os.close(stream)


@dataclass
class Importers:
    """The processes that have imported Ray, by their kind and its settings; None for what came once."""

    forks: Forks
    found: dict[tuple[str, frozenset[tuple[str, str]]], socket.socket | None] = field(default_factory=dict)

    def take(self, request: Request, server: socket.socket) -> bool:
        """Whether an importer has taken a request."""
        key = (request.kind, frozenset(request.settings.items()))
        if key not in self.found and request.kind != "worker":
            self.found[key] = None
            return False
        to = self.found.get(key) or self.begin(request, server)
        try:
            socket.send_fds(to, [request.message], [request.connection.fileno(), *request.streams])
        except OSError:  # it was idle, or could not import Ray and has said why
            self.found.pop(key, None)
            return False
        self.found[key] = to
        return True

    def begin(self, request: Request, server: socket.socket) -> socket.socket:
        """A new importer for the settings of a request."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self.forks.fork() == 0:
            request.close()
            for other in (server, ours, *filter(None, self.found.values())):
                other.close()
            import_ray(request.kind, request.settings, theirs, self.forks)
        theirs.close()
        return ours


def main(address: str) -> None:
    """Serve at a socket until standard input ends.

    Beside the socket a file of each fork names the process that it is a fork for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    forks = Forks(Path(address).parent)
    importers = Importers(forks)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen(64)  # whoever comes now waits
        sys.meta_path.insert(0, OURS_AHEAD)
        load(AHEAD, "all")
        while sys.stdin not in (ready := select.select([server, sys.stdin, *forks.descriptors], [], [])[0]):
            forks.serve(ready)
            if server not in ready:
                continue
            connection = server.accept()[0]
            message, streams = socket.recv_fds(connection, MESSAGE, 3)[:2]
            request = Request(message, connection, streams)
            if message and not importers.take(request, server):
                stand_in(request, {}, forks, server)
            request.close()


def load(names: list[str], kind: str) -> None:
    """Import, for forks that share the memory: no collection is to write to it."""
    for name in names:
        importlib.import_module(name)
    OURS_AHEAD.load(OURS.get(kind, ()))
    gc.collect()
    gc.freeze()


def import_ray(kind: str, settings: dict[str, str], requests: socket.socket, forks: Forks) -> NoReturn:
    """Import Ray under these settings, and fork for every request with them."""
    os.environ.update(settings)
    before = dict(os.environ)
    load(PARTS[kind], kind)
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    idle = IDLE if kind == "worker" else None
    while ready := select.select([requests, *forks.descriptors], [], [], None if forks else idle)[0]:
        forks.serve(ready)
        if requests not in ready:
            continue
        message, descriptors = socket.recv_fds(requests, MESSAGE, 4)[:2]
        if not message:
            break  # the server is gone
        request = Request(message, socket.socket(fileno=descriptors[0]), descriptors[1:])
        draw_apart()
        stand_in(request, added, forks, requests)
        request.close()
    forks.serve_all()
    os._exit(0)


def draw_apart() -> None:
    """Have the next fork draw other ids than the one before it draws, in thousands of draws.

    Ray's C++ seeds a stream of ids when Ray is imported, and forks go on with a copy.  Workers that put objects of one
    id into their node's store at the same time die of it, and whoever waits for the worker does so for ten seconds.
    """
    from ray._raylet import UniqueID

    for _ in range(FAR_APART):
        UniqueID.from_random()


def stand_in(request: Request, added: dict[str, str], forks: Forks, mine: socket.socket) -> None:
    """Have a fork stand for a process that asks, if it can.

    added: variables that were set when Ray was imported.  mine: what a fork has no use for.
    """
    asked, whose = request.asked, request.whose
    asked["environ"] = added | asked["environ"]
    if asked["prefix"] != sys.prefix:
        return
    try:
        away = os.readlink(f"/proc/{whose}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except FileNotFoundError:  # it has been killed
        return
    if away:  # only a process of its own can fork into another namespace
        if forks.fork():
            return
        mine.close()
        if not enter_namespace(whose):
            os._exit(0)
    if forks.fork(request.connection, whose) == 0:
        mine.close()
        request.connection.close()
        become(asked, request.streams)
    if away:
        request.close()
        forks.serve_all()
        os._exit(0)


def enter_namespace(pid: int) -> bool:
    """Have the next forks live in the namespaces of a process; whether they will."""
    import ctypes

    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt", "pid")]
    return not any(ctypes.CDLL(None).setns(descriptor, 0) for descriptor in descriptors)


if __name__ == "__main__":
    main(sys.argv[1])
