"""fedtune watch [RUN…]: a live page of runs that go on or are over, for a browser on this machine or behind SSH.

It reads the runs' folders and changes nothing.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from urllib.parse import quote

from fedtune.core.errors import UserError
from fedtune.core.terminal import say, several
from fedtune.tuning.options import arguments
from fedtune.tuning.options.types import number
from fedtune.user_code.command import Parser, guarded

LOOPBACK, PORT = "127.0.0.1", 8600
TOKEN = "FEDTUNE_WATCH_TOKEN"  # the variable with a token of one's own
SHORTEST = 16  # characters of such a token


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune watch`."""
    p = Parser(
        prog="fedtune watch",
        description="Show runs in a browser while they go on, and afterwards.",
        examples=("fedtune watch", "fedtune watch runs/first --port 8600"),
    )
    p.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="a study's folder (default: all in --storage-path)"
    )
    p.add_argument(
        "--storage-path", type=Path, default=Path("runs"), metavar="DIR", help="where runs are (default runs)"
    )
    p.add_argument(
        "--port",
        type=arguments.typed(number(int, 0, 65535)),
        metavar="PORT",
        help=f"port to listen on (default {PORT}, or a free one)",
    )
    p.add_argument(
        "--host",
        type=_host,
        default=LOOPBACK,
        help=f"IP address to listen on (default {LOOPBACK}: this machine only, and SSH)",
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune watch` and return its exit status."""
    args = parser().parse_args(argv)
    token = _token()
    from fedtune.reporting.watch import pages, server
    from fedtune.reporting.watch.history import StudyFolders

    runs = StudyFolders(args.storage_path, args.runs)
    with server.listen(args.host, PORT if args.port is None else args.port, args.port is not None) as listening:
        names = list(runs.all())
        page = pages.run_address(names[0]) if args.runs and len(names) == 1 else "/"
        port = listening.getsockname()[1]
        say(f"watching {several(len(names), 'run')}: http://{_name(args.host)}:{port}{page}?token={quote(token)}")
        if args.host == LOOPBACK:
            say(f"from another machine: ssh -L {port}:{LOOPBACK}:{port} {socket.gethostname()}, then the same address")
        elif not ipaddress.ip_address(args.host).is_loopback:
            say("note: others can reach this address, and it is not encrypted: the token can be read on the way")
        try:
            server.serve(runs, listening, token)
        except KeyboardInterrupt:
            pass  # Ctrl-C is how it ends
    return 0


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address({"localhost": LOOPBACK}.get(text, text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an IP address, but got {text!r}") from None


def _token() -> str:
    """The token that pages ask for: the user's own, or a new one.  UserError for one that could be guessed."""
    given = os.environ.get(TOKEN, secrets.token_urlsafe(24))
    if len(given) < SHORTEST or not given.isascii() or not given.isprintable() or any(c in given for c in ' ";,\\'):
        raise UserError(
            f"{TOKEN} must have at least {SHORTEST} characters, without spaces, quotes, commas, semicolons or "
            "backslashes; unset it for a random one"
        )
    return given


def _name(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
