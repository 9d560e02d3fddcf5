"""What a library raises for a damaged file of data, as one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedtune.core.errors import UserError


@contextmanager
def reading(path: object, kind: str, todo: str = "make it again") -> Iterator[None]:
    """Turn any error into a UserError; that of the operating system names its file already.

    kind: what the file should be.  todo: what would help.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of the zip format, its compression, JSON, NumPy, Arrow
        if isinstance(error, OSError) and error.filename:
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{path} cannot be read as {kind}: {reason}; {todo}") from error
