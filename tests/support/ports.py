"""Ports for servers that others are told of before they listen."""

import random
import socket

WORKERS, EPHEMERAL = 19_999, 32_768  # the last of Ray's workers; the first that Linux gives to whoever asks for none


def free_port() -> int:
    """A port of this machine that nobody has, nor gets before its server takes it unless by this function.

    One that the system chose would go to the next who asks for any once it is given back, say to a connection of the
    search that another test plays beside.
    """
    for port in random.SystemRandom().sample(range(WORKERS + 1, EPHEMERAL), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("100 ports were tried, and all are taken")
