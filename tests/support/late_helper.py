"""A module beside a user's file, with a memory."""

CALLS = [0]


def count() -> int:
    """How often it was called."""
    CALLS[0] += 1
    return CALLS[0]
