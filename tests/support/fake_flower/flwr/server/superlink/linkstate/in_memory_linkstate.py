"""Numbers of nodes."""

import os


def generate_rand_int_from_bytes(count, exclude=()):
    return int.from_bytes(os.urandom(count), "little")
