"""Read by every Python that starts below the tests: commands of ours and processes of Ray ask the server for a fork.

This process stays as the one that was started: it passes signals on and ends as its fork does, and when it is killed
its fork is.  Without FEDTUNE_FORKS in its environment a process is what it always was: so for tests of what it loads.
"""

import os
import sys

OF_RAY = (
    "workers/default_worker.py",
    "workers/setup_worker.py",
    "dashboard/dashboard.py",
    "dashboard/agent.py",
    "runtime_env/agent/main.py",
    "_private/log_monitor.py",
    "/monitor.py",
)


def has_fork() -> bool:
    """Whether this is to become `fedtune …`, `python -m fedtune.…`, a notebook's kernel or one of Ray's own scripts.

    FEDTUNE_FORK, yes or no, is for one process, and not for those that it starts.
    """
    words = [word for word in sys.orig_argv[1:] if word not in ("-u", "-P")]
    if wish := os.environ.pop("FEDTUNE_FORK", ""):
        return wish == "yes"
    if words[:1] == ["-m"]:
        return words[1].partition(".")[0] in ("fedtune", "ipykernel_launcher")
    # Not `ray …`: the agents of a `ray start` that is a fork spin until it ends.
    return words[:1] == [f"{sys.prefix}/bin/fedtune"] or "/ray/" in words[0] and words[0].endswith(OF_RAY)


def as_fork() -> None:
    """Ask for a fork, and end as it does; returns where there is none.

    None is for a Python that has other packages than the server, or another process namespace and no way into it.
    """
    import json
    import signal
    import socket

    passed = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    asked = {
        "prefix": sys.prefix,
        "folder": os.getcwd(),
        "umask": os.umask(0o77),
        "environ": dict(os.environ),
        "words": sys.orig_argv[1:],
        "heard": passed,
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    os.umask(asked["umask"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(os.environ["FEDTUNE_FORKS"])
            socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
            if not server.recv(16):
                return
        except OSError:
            return
        for number in passed:
            signal.signal(number, lambda number, _: server.send(b"%d" % number))
        status = int(server.recv(16) or 1)
    if status < 0:
        if status != -signal.SIGKILL:  # whose handling nobody sets
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if "FEDTUNE_FORKS" in os.environ and len(sys.orig_argv) > 1 and has_fork():
    as_fork()
