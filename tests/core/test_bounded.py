"""Files are read if they have a size that their kind may have."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtune.core import zipped
from fedtune.core.errors import UserError
from fedtune.data import user_arrays
from fedtune.experiment import initial_weights
from fedtune.runs import reading
from fedtune.user_code import user_files

TERABYTES = 3 * 2**40


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTES)


KINDS = {"sparse": sparse, "folder": Path.mkdir}
READERS = {
    "code": lambda path: user_files.take(str(path.rename(path.with_suffix(".py")))),
    "data": lambda path: user_files.take(str(path)),
    "weights": lambda path: initial_weights.take(str(path)),
    "record": reading.record,
    "best.yaml": reading.best,
    "table": reading.table,
    "text table": reading.text_table,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_too_large_or_no_file_is_refused_before_it_is_read(kind, reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kind == "folder" and reader in ("data", "code"):
        return  # it is one of pictures
    KINDS[kind](tmp_path / "x")
    with pytest.raises((OSError, UserError)) as caught:
        READERS[reader](tmp_path / "x")
    assert {"sparse": "more than", "folder": "Is a directory"}[kind] in reading.short(caught.value)


def test_a_log_that_is_one_endless_line_is_refused(tmp_path):
    sparse(tmp_path / "result.json")
    with pytest.raises(UserError, match="has more than 268,435,456 bytes"):
        list(reading.rows(tmp_path / "result.json"))


# ---- what unpacks to more than it has


def test_more_than_half_the_memory_is_not_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", x=np.arange(1000))
    monkeypatch.setattr(zipped, "total_memory", lambda: 10_000)
    with pytest.raises(UserError, match="more than 5,000 bytes"):
        user_files.take(str(tmp_path / "x.npz"))


def test_members_of_any_packing_are_told(tmp_path):
    file = tmp_path / "x.npz"
    np.savez(file, x=np.arange(10))
    content = file.read_bytes()
    for at, flag in ((6, 1), (8, 99)):  # of a password, of a packing that nobody knows
        changed = bytearray(content)
        changed[at] = changed[content.index(b"PK\1\2") + at + 2] = flag
        file.write_bytes(changed)
        with pytest.raises(UserError, match="cannot be read as an .npz"):
            user_arrays.read_npz(file, ("x",))


def test_weights_that_repeat_their_numbers_are_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "w.pt")
    name, _ = initial_weights.take(str(tmp_path / "w.pt"))
    with pytest.raises(UserError, match="but w of w.pt is 1000000×1000000 repeated numbers"):
        initial_weights.find(name)


@pytest.mark.parametrize("state", [{"groups": 3}, {}, {"groups": [{"tensors": 1}]}, {"server": 3, "groups": []}])
def test_a_saved_model_of_another_form_is_refused(state, tmp_path):
    torch.save({"experiment": {}, "state": state}, tmp_path / "w.pt")
    name, _ = initial_weights.take(str(tmp_path / "w.pt"))
    with pytest.raises(UserError, match="w.pt has no weights"):
        initial_weights.find(name)


def test_a_configuration_of_a_million_entries_is_refused(tmp_path):
    (tmp_path / "best.yaml").write_text("\n".join(f"k{i}: 1" for i in range(10_001)))
    with pytest.raises(ValueError, match="it has more than 10,000 entries"):
        reading.best(tmp_path / "best.yaml")
    (tmp_path / "best.yaml").write_text("\n".join(f"k{i}: 1" for i in range(40_000)))
    with pytest.raises(OSError, match="it has more than 262,144 bytes"):
        reading.best(tmp_path / "best.yaml")


# ---- folders


def test_links_that_lead_back_by_others_are_refused(tmp_path):
    for name, to in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
        (tmp_path / name / "link").symlink_to(tmp_path / to)
    with pytest.raises(UserError, match="link cannot be read: it is a link to a folder that contains it"):
        user_files.take(f"{tmp_path}/")
