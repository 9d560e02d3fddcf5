"""How a fork of the server becomes the process that was asked for: its place, its streams, its words, its end."""

import atexit
import os
import runpy
import shlex
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn


def become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be what `python WORDS…` would be."""
    take_place(asked, streams)
    status = 0
    try:
        run(asked["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        status = -signal.SIGINT
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of every Python
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def take_place(asked: dict[str, Any], streams: list[int]) -> None:
    """Folder, environment, streams, signals and name of the process that was started."""
    import numpy as np
    import torch

    os.setpgid(0, 0)  # Ray ends a worker with its process group
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    unbuffered = "-u" in asked["words"][:1]
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", 1 if unbuffered else -1, closefd=False)
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual if number in asked["heard"] else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    os.umask(asked["umask"])
    os.chdir(asked["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(asked["environ"])
    mine = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*mine, *(path for path in sys.path[1:] if path not in paths)]
    if threads := asked["environ"].get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))  # it was read when PyTorch was imported
    np.random.seed()  # as the other streams are in a fork
    sys.orig_argv = [sys.executable, *asked["words"]]
    from ray._raylet import setproctitle  # as late as this: Ray reads the environment

    setproctitle(" ".join(sys.orig_argv))
    os.execvp = go_on  # type: ignore[assignment]


def run(words: list[str]) -> None:
    """Run a module, a script or code as the main one."""
    while words[0] in ("-u", "-P"):
        words = words[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(words[1], vars(main))
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def go_on(file: str, args: list[str]) -> None:
    """What Ray's set-up of a worker does at its end, `bash -c "exec python SCRIPT WORDS…"`, in this process."""
    first, python, *words = shlex.split(args[-1])
    if (first, python) != ("exec", sys.executable):
        os.execv(f"/bin/{file}", args)
    run(words)
