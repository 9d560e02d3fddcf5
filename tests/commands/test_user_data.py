"""Data and partitions that cannot be used: one line each, status 2, nothing started, nothing left behind."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import refusal
from support.user_data import pictures, saved, wards

from fedtune.commands import partition, run

W = wards()
X, Y = W["x"], W["y"]


def npz(**changes: Any) -> Callable[[Path], str]:
    """An .npz of the wards with other arrays; None leaves one out."""
    arrays = {n: a for n, a in (W | changes).items() if a is not None}
    return lambda folder: str(saved(folder / "w.npz", **arrays))


def code(text: str) -> Callable[[Path], str]:
    """A function `make` of a file, whose body is the text."""

    def write(folder: Path) -> str:
        (folder / "code.py").write_text(f"import numpy as np\nX = np.zeros((30, 2))\n\ndef make(n=1):\n    {text}\n")
        return f"{folder}/code.py:make"

    return write


def file(content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "w.npz").write_bytes(content)
        return str(folder / "w.npz")

    return write


def pickled(folder: Path) -> str:
    """An .npz whose array is a pickle that writes a file when it is read."""

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(folder / "harm"), "w")

    with zipfile.ZipFile(folder / "w.npz", "w") as archive:
        with archive.open("x.npy", "w") as entry:
            np.lib.format.write_array(entry, X)
        header = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
        archive.writestr("y.npy", header.ljust(127) + b"\n" + pickle.dumps(Harm()))
    return str(folder / "w.npz")


def folder_of(make: Callable[[Path], Any]) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "pets").mkdir()
        make(folder / "pets")
        return str(folder / "pets")

    return write


def broken_picture(folder: Path) -> None:
    pictures(folder)
    (folder / "dog" / "07.png").write_bytes(b"no picture")


def cut_picture(folder: Path) -> None:
    pictures(folder, dog=(40, 40), cat=(40, 40))
    for path in (folder / "dog").iterdir():
        path.write_bytes(path.read_bytes()[:-30])


def partitioned(folder: Path) -> str:
    rows = np.arange(240)
    file = saved(folder / "p.npz", row=rows % 120, client=rows % 4, split=rows // 4 % 3)
    return f"{npz()(folder)} --partition {file}"


nan = np.where(np.arange(240)[:, None] == 17, np.nan, X)
NPZ, FOLDERS = "w.npz cannot be read as an .npz", "needs two or more class folders"
WRONG: dict[str, tuple[Callable[[Path], str], str]] = {  # a data set -> a word of the rule that it breaks
    "no file": (lambda folder: f"{folder}/none.npz", "none.npz cannot be read: No such file or directory"),
    "a table": (lambda folder: "table.xls", "or your own: FILE.npz, FILE.csv(y=COLUMN), a folder of pictures"),
    "no zip": (file(b"text"), NPZ),
    "cut off": (lambda folder: file(Path(npz()(folder)).read_bytes()[:900])(folder), NPZ),
    "empty file": (file(b""), NPZ),
    "pickle": (pickled, "pickled Python objects are never read"),
    "objects": (npz(y=np.array([{}] * 240)), "pickled Python objects are never read"),
    "no x": (npz(x=None), "w.npz needs arrays x and y, but has no x: it has y, owner"),
    "another name": (npz(Y=Y), "unknown array in"),
    "NaN": (npz(x=nan), "must be finite, but 1 rows are not, the first is row 17"),
    "too large": (lambda f: npz(x=X * 1e300)(f) + " --normalise none", "must be finite in float32, but 240 rows"),
    "a row far off": (npz(x=np.where(np.arange(240)[:, None] == 7, X * 1e300, X)), "but 1 rows are not once they have"),
    "whole numbers": (npz(x=Y[:, None] + np.arange(4)), "give --x-as numbers if they measure"),
    "rows of two axes": (npz(x=np.zeros((240, 8, 9))), "give --x-as images if that is height×width, or --x-as series"),
    "bands last": (npz(x=np.zeros((240, 16, 16, 12))), "or x.transpose(0, 3, 1, 2)"),
    "feature maps last": (npz(x=np.zeros((240, 7, 7, 32))), "or x.transpose(0, 3, 1, 2)"),
    "series of a table": (lambda f: npz()(f) + " --x-as series", "x_as must be numbers or tokens for rows of shape 5"),
    "tokens that are not whole": (lambda f: npz()(f) + " --x-as tokens", "tokens are whole numbers from 0 on, but x"),
    "an unknown kind": (lambda f: npz()(f) + " --x-as words", "x_as must be numbers or tokens"),
    "x_as of digits": (lambda f: "digits --x-as tokens", "x_as is for your own arrays, but digits is a built-in"),
    "one axis": (npz(x=X[:, 0]), "must be numbers of 2 to 4 axes"),
    "no features": (npz(x=X[:, :0]), "must be numbers of 2 to 4 axes, rows first, none of length 0"),
    "no rows": (npz(x=X[:0], y=Y[:0], owner=None), "none of length 0"),
    "negative tokens": (lambda f: npz(x=Y[:, None] - 1)(f) + " --x-as tokens", "tokens are whole numbers from 0 on"),
    "length of owner": (npz(owner=W["owner"][1:]), "must be one value for each of the 240 rows of x"),
    "labels out of range": (npz(classes=["a", "b"]), "must be 0 to 1, because it names 2 classes, but has 2"),
    "one class": (npz(y=Y * 0), "needs at least two classes"),
    "no test rows": (npz(split=Y % 2), "needs train rows and test rows"),
    "owner without rows": (npz(split=np.where(W["owner"] == 1, 0, Y)), "by the split of w.npz"),
    "too small owners": (npz(owner=np.arange(240) // 2), "0 with 2 rows for 1 client, 1 with 2 rows"),
    "empty folder": (folder_of(lambda f: None), FOLDERS),
    "one class folder": (folder_of(lambda f: pictures(f, ("dog",))), FOLDERS),
    "files beside": (folder_of(lambda f: (f / "1.png").write_bytes(b"")), FOLDERS),
    "unreadable picture": (folder_of(broken_picture), "07.png cannot be read as a picture"),
    "cut picture": (lambda f: folder_of(cut_picture)(f) + " --partition iid --clients 3", "image file is truncated"),
    "file without a name": (lambda f: code("return 1")(f).removesuffix(":make"), "returns arrays, FILE.py:NAME"),
    "no such function": (lambda f: code("return 1")(f) + "r", "unknown name in"),
    "no function": (lambda f: code("return 1")(f).replace("make", "X"), "must be a function that returns arrays"),
    "a number": (code("return 3"), "code.py:make must return (x, y)"),
    "nothing": (code("pass"), "but returned a NoneType"),
    "other names": (code("return {'data': X}"), "but returned ['data']"),
    "rows without length": (code("return (v for v in X), X"), "holds a generator"),
    "it raises": (code("raise KeyError('ward')"), "code.py:5: KeyError"),
    "one argument too many": (lambda f: code("return X, X")(f) + "(m=2)", "unexpected keyword argument 'm'"),
    "options of an npz": (lambda f: npz()(f) + ":x", "w.npz"),
    "a partition": (partitioned, "must list a row only once"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_data_are_refused_in_one_line(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, message = WRONG[what]
    given = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    line = refusal(run.main, f"--algo fedavg --rounds 1 --output rows.jsonl --dataset {given}", capsys)
    assert message in line and line.startswith("error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_on_owners_and_on_tokens_reports_every_round(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.main(f"--algo fedprox --rounds 8 --lr 0.1 --dataset {npz()(tmp_path)} --output w.jsonl".split()) == 0
    assert "fedprox, 6 clients, 8 rounds" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "w.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [*range(1, 9)] and rows[-1]["val_acc"] > 0.5
    words = np.random.default_rng(0).integers(0, 50, (240, 7)) + 50 * Y[:, None]
    saved(tmp_path / "t.npz", x=words, y=Y)
    arguments = "--algo fedavg --rounds 5 --lr 0.5 --partition iid --clients 4 --dataset t.npz --output t.jsonl"
    assert run.main([*arguments.split(), "--x-as", "tokens"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert rows[-1]["val_acc"] > 0.5


STRANGE = ("[unk]", "a[/b]", ":fire:", "<b>bold</b>", "$x$ & $y$", "{0}%s")


def test_names_of_classes_and_owners_are_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither rich's nor Plotly's, and no text moves the cursor."""
    monkeypatch.chdir(tmp_path)
    data = wards()
    names, owners = np.array(STRANGE)[np.arange(240) % 6], np.array([*STRANGE[:5], "red \x1b[31m"])[data["owner"]]
    saved(tmp_path / "t.npz", x=data["x"], y=names, owner=owners)
    assert partition.main("--dataset t.npz --owners 1 -o picture.html".split()) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"red \x1b[31m" in out
    assert all(name in out for name in STRANGE[:5]), "as owners, and some as classes"
    page = (tmp_path / "picture.html").read_text().partition("Plotly.newPlot(")[2]
    shown = page.encode().decode("unicode_escape")
    assert "&lt;b&gt;bold&lt;/b&gt;" in shown and "&#36;x&#36; &amp; &#36;y&#36;" in shown
    assert "<b>" not in shown and "$x$" not in shown


def test_who_holds_what_is_printed_drawn_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--dataset digits --partition shards --clients 6 --set label_noise=0.1"
    assert partition.main(f"{words} -o picture.html --save p.npz".split()) == 0
    first = capsys.readouterr().out
    assert "6 clients, 1797 rows, 10 classes" in first and "saved: p.npz" in first and "label skew" in first
    assert "Partition shards of digits" in (tmp_path / "picture.html").read_text()
    assert partition.main("--dataset digits --partition p.npz --set label_noise=0.1".split()) == 0
    assert "6 clients, 1797 rows, 10 classes" in capsys.readouterr().out
    for wrong, message in (
        ("-o picture.html", "--output needs a new file *.html"),
        ("--save p.txt", "--save needs a new file *.npz"),
        ("-o no/p.html", "in a folder that exists"),
        ("--clients 2000", "take 599 clients or fewer"),
    ):
        assert message in refusal(partition.main, f"{words} {wrong}", capsys)
