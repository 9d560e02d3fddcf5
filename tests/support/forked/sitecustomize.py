"""Read by every Python that starts below the tests: one that is to become a worker of Ray asks the server for a fork.

It stays as the process that Ray has started, and ends as its fork does.
"""

import os
import sys

if "FEDTUNE_FORKS" in os.environ and any(
    word.endswith("/workers/default_worker.py") for word in sys.orig_argv[2:5]
):
    import json
    import socket

    asked = {
        "where": [sys.prefix, os.readlink("/proc/self/ns/pid")], "pid": os.getpid(), "folder": os.getcwd(),
        "environ": dict(os.environ), "words": sys.orig_argv[1:],
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX) as server, server.makefile("rw") as stream:
        server.connect(os.environ["FEDTUNE_FORKS"])
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        print(json.dumps(asked), file=stream, flush=True)
        status = stream.readline()
    if status:  # else this Python has other packages or another process namespace than the server
        os._exit(int(status))
