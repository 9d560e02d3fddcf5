"""Only regular files are read, of a size that their kind may have; what never ends or unpacks to more is refused."""

import os
import socket
import struct
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedtune.core import bounded, zipped
from fedtune.core.errors import UserError
from fedtune.data import picture, user_arrays
from fedtune.experiment import initial_weights
from fedtune.runs import reading
from fedtune.user_code import content_hashes, user_files

TERABYTES = 3 * 2**40


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTES)


def listening(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


KINDS = {"fifo": fifo, "device": device, "sparse": sparse, "socket": listening, "folder": Path.mkdir}
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
def test_what_is_no_regular_file_is_refused_before_it_is_read(kind, reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kind == "folder" and reader in ("data", "code"):
        return  # it is one of pictures
    KINDS[kind](tmp_path / "x")
    with pytest.raises((OSError, UserError)) as caught:
        READERS[reader](tmp_path / "x")
    why = {"fifo": "it is a pipe", "device": "it is a device", "socket": "it is a socket", "sparse": "more than"}
    said = reading.short(caught.value)
    assert why.get(kind, "Is a directory") in said


def test_a_log_that_is_one_endless_line_is_refused(tmp_path):
    sparse(tmp_path / "result.json")
    with pytest.raises(UserError, match="has more than 268,435,456 bytes"):
        list(reading.rows(tmp_path / "result.json"))


def test_a_link_to_a_regular_file_is_one(tmp_path):
    (tmp_path / "there").write_bytes(b"content")
    (tmp_path / "link").symlink_to("there")
    assert bounded.read(tmp_path / "link") == b"content"


def test_a_file_of_proc_says_that_it_is_empty_and_is_read_all_the_same():
    assert bounded.read("/proc/self/cmdline") and Path("/proc/self/cmdline").stat().st_size == 0


def test_a_file_that_grows_while_it_is_read_stays_within_its_bound(tmp_path, monkeypatch):
    file = tmp_path / "grows"
    file.write_bytes(b"x" * 100)
    looked = bounded._require

    def then_grow(path, status, most):
        looked(path, status, most)
        with file.open("ab") as more:
            more.write(b"x" * 1000)

    monkeypatch.setattr(bounded, "_require", then_grow)
    with pytest.raises(bounded.Unfit, match="has more than 500 bytes"):
        bounded.read(file, 500)


# ---- what unpacks to more than it has


@pytest.fixture
def little(monkeypatch):
    """What any file may unpack to is a megabyte here, for a bomb of gigabytes takes seconds to make."""
    monkeypatch.setattr(bounded, "ANY_UNPACKED", 2**20)


def lying(path: Path, shape: tuple[int, ...], dtype: str = "<f8") -> Path:
    """An .npz of one array that is said to have this shape, and has eight numbers."""
    with zipfile.ZipFile(path, "w") as packed, packed.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        file.write(bytes(64))
    return path


@pytest.mark.usefixtures("little")
def test_arrays_that_unpack_to_more_than_there_can_be_are_refused(tmp_path):
    bombed = tmp_path / "bomb.npz"
    np.savez_compressed(bombed, x=np.zeros((40, 2**18), np.uint8))
    for read in (lambda path: user_files.take(str(path)), lambda path: user_arrays.read_npz(path, ("x",))):
        with pytest.raises(UserError, match=r"unpacks to 10,4.* bytes, more than 500 times its size on disk"):
            read(bombed)


def test_more_than_half_the_memory_is_not_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", x=np.arange(1000))
    monkeypatch.setattr(zipped, "total_memory", lambda: 10_000)
    with pytest.raises(UserError, match="more than 5,000 bytes"):
        user_files.take(str(tmp_path / "x.npz"))


@pytest.mark.parametrize(
    "shape, dtype", [((10**12,), "<f8"), ((2**40, 2**40), "|u1"), ((3,), "<f8"), ((1,), "<U99999999")]
)
def test_a_header_that_says_another_size_is_refused(shape, dtype, tmp_path):
    with pytest.raises(
        UserError, match=r"x\.npz cannot be read as an \.npz: the header of x\.npy says .* but it has 64"
    ):
        user_arrays.read_npz(lying(tmp_path / "x.npz", shape, dtype), ("x",))


def test_a_directory_that_is_said_to_be_endless_is_refused(tmp_path):
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**31, 0, 0)
    with (tmp_path / "x.npz").open("wb") as file:
        file.write(b"PK")
        file.truncate(2**31)
        file.seek(2**31)
        file.write(end)
    with pytest.raises(UserError, match="its directory has more than 4,194,304 bytes"):
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


@pytest.mark.usefixtures("little")
def test_a_table_of_a_few_bytes_that_stands_for_gigabytes_is_refused(tmp_path):
    pd.DataFrame({"x": np.zeros(2**20, np.int8)}).to_parquet(tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(UserError, match="more than 500 times its size on disk"):
        reading.table(tmp_path / "t.parquet")


def test_a_configuration_of_a_million_entries_is_refused(tmp_path):
    (tmp_path / "best.yaml").write_text("\n".join(f"k{i}: 1" for i in range(10_001)))
    with pytest.raises(ValueError, match="it has more than 10,000 entries"):
        reading.best(tmp_path / "best.yaml")
    (tmp_path / "best.yaml").write_text("\n".join(f"k{i}: 1" for i in range(40_000)))
    with pytest.raises(OSError, match="it has more than 262,144 bytes"):
        reading.best(tmp_path / "best.yaml")


# ---- folders


def test_a_folder_of_other_things_is_no_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(content_hashes, "PROMISING", 5)
    for i in range(6):
        (tmp_path / f"{i}.txt").touch()
    with pytest.raises(UserError, match="none of its first 5 files is a picture"):
        user_files.take(f"{tmp_path}/")
    (tmp_path / "more").mkdir()
    for i in range(6):
        (tmp_path / "more" / f"{i}.PNG").touch()
    assert content_hashes.digest(tmp_path / "more")


@pytest.mark.parametrize("kind", ["fifo", "device", "sparse", "socket"])
def test_a_folder_with_what_is_no_picture_is_refused_unless_that_is_hidden(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").touch()
    before = content_hashes.digest(tmp_path)
    KINDS[kind](tmp_path / ("x" if kind == "socket" else "x.png"))
    with pytest.raises(UserError, match="/x.* cannot be read: it (is a|has more than 268,435,456 bytes)"):
        user_files.take(f"{tmp_path}/")
    if kind != "sparse":
        (tmp_path / ("x" if kind == "socket" else "x.png")).rename(tmp_path / ".x")
        assert content_hashes.digest(tmp_path) == before


def test_who_opens_a_fifo_does_not_wait_for_its_writer(tmp_path):
    fifo(tmp_path / "x")
    done = threading.Thread(target=lambda: pytest.raises(OSError, bounded.read, tmp_path / "x"), daemon=True)
    done.start()
    done.join(300)
    assert not done.is_alive()


def test_links_that_lead_back_by_others_are_refused(tmp_path):
    for name, to in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
        (tmp_path / name / "link").symlink_to(tmp_path / to)
    with pytest.raises(UserError, match="link cannot be read: it is a link to a folder that contains it"):
        user_files.take(f"{tmp_path}/")


@pytest.mark.parametrize("side", [8193, 20_000])
def test_a_picture_of_a_few_bytes_that_stands_for_gigabytes_is_refused(side, tmp_path):
    header = struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(b""))
    sized = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    file = tmp_path / "x.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(sized))
    with pytest.raises(
        UserError, match=r"a picture may have at most 67,108,864 pixels, but .*x\.png has more; make it"
    ):
        picture.form(file)
