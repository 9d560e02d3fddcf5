"""A Ray cluster of one node as `ray start` makes it, and `ray job` as its client."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from support.ports import free_port
from support.waiting import wait_for

TRIES = 3
RAY = (sys.executable, "-m", "ray.scripts.scripts")  # `ray` with this Python, wherever a script of that name stands


@dataclass(frozen=True)
class Head:
    """A cluster of one node: its dashboard, its token, its temporary folder, a client's environment."""

    address: str
    token: str
    folder: Path
    environment: dict[str, str]

    def begin(self, *words: str) -> subprocess.Popen:
        """`ray job` with these words, as somebody who has the token."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*RAY, "job", *words], env=self.environment, **pipes)

    def run(self, *words: str) -> tuple[int, str]:
        """Its exit status and what it said."""
        process = self.begin(*words)
        said, _ = process.communicate(timeout=3000)
        return process.returncode, said

    def ask(self, path: str) -> requests.Response:
        """The dashboard's answer."""
        header = {"Authorization": f"Bearer {self.token}"}
        return requests.get(f"{self.address}/api/{path}", headers=header, timeout=300)

    def info(self, job: str) -> dict[str, Any]:
        """What the cluster knows of a job."""
        return self.ask(f"jobs/{job}").json()


@contextmanager
def ray_head() -> Iterator[Head]:
    """A cluster that asks for a token of its own and takes jobs; gone afterwards, with all of its processes.

    Another is tried where one did not come: Ray gives its node 30 s, and a busy machine may need longer.
    """
    said = []
    for _ in range(TRIES):
        with _started() as (made, log):
            if made:
                yield made
                return
            said.append(log.read_text())
    raise AssertionError("\n".join(["no Ray head came", *said]))


@contextmanager
def _started() -> Iterator[tuple[Head | None, Path]]:
    """One try: the cluster, or nothing if `ray start` ended before it takes jobs; what was said."""
    folder = Path(tempfile.mkdtemp(prefix="jobs-", dir="/tmp"))  # sockets' names must be short
    token, file, said = secrets.token_hex(32), folder / "token", folder / "start.log"
    file.write_text(token)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    programs = Path(sys.executable).parent
    asks = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file), "PATH": f"{programs}:{os.environ['PATH']}"}
    dashboard = free_port()
    command = [  # port 0: whoever listens there chooses it, so that nobody can have taken it meanwhile
        *RAY,
        "start",
        "--head",
        "--block",
        "--num-cpus=2",
        "--disable-usage-stats",
        "--node-ip-address=127.0.0.1",
        "--port=0",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        "--dashboard-agent-listen-port=0",
        "--dashboard-agent-grpc-port=0",
        f"--ray-client-server-port={free_port()}",
        f"--temp-dir={folder}",
    ]
    with said.open("w") as log:
        process = subprocess.Popen(command, env=clean | asks, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    made = Head(address, token, folder, clean | asks | {"RAY_API_SERVER_ADDRESS": address})
    try:
        # The dashboard's answer says too little: it answers before there is an agent, and takes no job until then.
        wait_for(lambda: process.poll() is not None or "Ray runtime started" in said.read_text())
        yield made if process.poll() is None else None, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not _naming(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _naming(folder: Path) -> list[int]:
    """Processes that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in (process / "cmdline").read_text():
                found.append(int(process.name))
        except OSError:
            continue
    return found
