"""A process that has imported what Ray's workers import, and becomes each of them by a fork.

The tests start hundreds of workers, and importing PyTorch and the rest takes a worker seconds of processor time, more
than most searches of the tests.  Ray is not imported ahead, for it reads its settings from the environment then; nor
is fedtune, which some tests have from another place.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

AHEAD = ("torch", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "pandas", "pyarrow.parquet", "pyarrow.fs",
         "scipy.stats", "sklearn.mixture", "optuna", "pydantic.main", "requests", "jsonschema", "IPython", "yaml",
         "rich", "fsspec", "google.protobuf.descriptor_pb2")  # fmt: skip


def main(address: str) -> None:
    """Serve at a socket until standard input ends.

    Beside the socket a file of each fork names the process that it is a fork for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers of the forks
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)  # whoever comes now waits
        for name in AHEAD:
            __import__(name)
        gc.freeze()  # a collection would write to every page, and forks share them
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection = server.accept()[0]
            if os.fork() == 0:
                server.close()
                keep(connection, Path(address).parent)
            connection.close()


def keep(connection: socket.socket, folder: Path) -> NoReturn:
    """Fork for the process at the other end, and tell it how the fork has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with suppress(OSError), connection, connection.makefile("rw") as stream:  # the other end may be gone
        asked = json.loads(stream.readline())
        if asked["where"] == [sys.prefix, os.readlink("/proc/self/ns/pid")]:
            pid = os.fork()
            if pid == 0:
                connection.close()
                become(asked, streams, folder)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(status if status >= 0 else 128 - status, file=stream, flush=True)
    os._exit(0)


def become(asked: dict[str, Any], streams: list[int], folder: Path) -> NoReturn:
    """Be what `python SCRIPT WORDS…` would be."""
    (folder / str(os.getpid())).write_text(str(asked["pid"]))
    os.setpgid(0, 0)  # Ray ends a worker with its process group
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    mine = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*mine, *(p for p in sys.path[1:] if p not in paths)]
    os.execvp = go_on  # type: ignore[assignment]
    status = 0
    try:
        script(asked["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(status)


def go_on(file: str, args: list[str]) -> None:
    """What Ray's set-up does at its end, `bash -c "exec python SCRIPT WORDS…"`, in this process."""
    first, python, *words = shlex.split(args[-1])
    if (first, python) != ("exec", sys.executable):
        os.execv(f"/bin/{file}", args)
    script(words)


def script(words: list[str]) -> None:
    """Run a script as the main module, options of Python before it left out."""
    while words[0].startswith("-"):
        words = words[1:]
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
