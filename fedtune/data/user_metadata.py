"""What is known of a user's own data set and partition without reading them, and carried to workers and records."""

from __future__ import annotations

from typing import NamedTuple

from fedtune.core.errors import UserError
from fedtune.data import user_rows
from fedtune.data.dataset import PICTURES
from fedtune.user_code import entry_points, references, user_files

DATASET, PARTITION = "dataset", "partition"  # the entries in a file's metadata
GROUP = "datasets"  # the group of entry points


class DatasetInfo(NamedTuple):
    """Metadata of a data set, known without reading it.

    shape    of a row as it was given; (3, 0, 0) for pictures of different sizes.
    kind     of the rows (see Dataset).
    owners   the number of owners; 0 if the data set has none.
    sizes    of owners: [rows, number of owners with this many], ascending.
    notes    notes for the user, one line each.
    digest   the hash of the arrays that a function returned.
    """

    shape: tuple[int, ...]
    classes: int
    kind: str
    owners: int
    rows: int
    digest: str = ""
    sizes: list[list[int]] = []  # noqa: RUF012 - never changed
    notes: tuple[str, ...] = ()

    def owners_of(self, rows: int) -> int:
        """The number of owners that have at least this many rows."""
        return sum(many for size, many in self.sizes if size >= rows) if rows else self.owners

    def row(self, name: str, image_size: int, x_as: str) -> tuple[str, tuple[int, ...]]:
        """The kind and shape of a row as a model sees it; UserError if that is ambiguous and x_as does not say."""
        pictures = self.kind == PICTURES
        if (x_as not in (user_rows.AUTO, user_rows.IMAGES)) if pictures else image_size:
            raise UserError(f"x_as is for arrays and image_size for pictures, but {name} holds others; leave it out")
        if not pictures:
            kind = user_rows.resolved(name, self.kind, self.shape, x_as)
            return kind, user_rows.row_shape(kind, self.shape)
        if not (image_size or self.shape[1]):
            raise UserError(
                f"pictures of {name} must have the same size, but differ; give a size to resize them to, such as "
                "--image-size 64"
            )
        return PICTURES, (self.shape[0], image_size, image_size) if image_size else self.shape


def offered() -> tuple[str, ...]:
    """The names of the data sets that installed packages provide."""
    return tuple(entry_points.names(GROUP))


def is_own(name: str) -> bool:
    """Whether a name is the canonical name of a user's data set with known metadata, or of a package's data set."""
    if user_files.is_own(name):
        return ending(name) in user_files.known(name).about.get(DATASET, {})
    return name in offered()


def of_file(name: str) -> DatasetInfo:
    """The metadata of a user's data set, as they were recorded when it was described."""
    values = user_files.known(name).about[DATASET][ending(name)]
    return DatasetInfo(**(values | {n: tuple(values[n]) for n in ("shape", "notes") if n in values}))


def is_partition(name: str) -> bool:
    """Whether a name is the canonical name of a user's partition whose metadata this process knows."""
    return user_files.is_own(name) and PARTITION in user_files.known(name).about


def clients(partition: str) -> int:
    """The number of clients in a user's partition."""
    return int(user_files.known(partition).about[PARTITION]["clients"])


def ending(name: str) -> str:
    """The part after the file: `:NAME(options)` for `FILE.py:NAME(options)`, "" for `FILE.npz`."""
    return name.removeprefix(references.parsed(name).path)
