"""CSV files as spreadsheets and old tools write them: read by the options of pandas, or refused with the cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.user_data import made, saved, taken

from fedtune.core.errors import UserError
from fedtune.data import datasets
from fedtune.data.dataset import Dataset

ROWS = [(i / 8, -i / 4, ["männlich", "weiblich"][i % 2]) for i in range(24)]
HEAD = ("a", "größe", "y")


def loaded(dataset: str | Path) -> Dataset:
    return datasets.load(taken(dataset, "iid", clients=2).dataset)


def table(head: tuple[str, ...] = HEAD, sep: str = ",", point: str = ".", before: str = "", end: str = "\n") -> str:
    """The rows as text."""
    lines = [sep.join((str(a).replace(".", point), str(b).replace(".", point), y)) for a, b, y in ROWS]
    return before + end.join([sep.join(head), *lines, ""])


QUOTED = "a,größe,y\n" + "".join(
    f'"{str(a).replace(".", ",")}","{str(b).replace(".", ",")}","{y}"\n' for a, b, y in ROWS
)
READ: dict[str, tuple[str, str, str, str]] = {
    "as pandas writes it": ("t.csv", table(), "utf-8", ""),
    "an upper-case ending": ("T.CSV", table(), "utf-8", ""),
    "tabs": ("t.tsv", table(sep="\t"), "utf-8", ""),
    "tabs in upper case, with options": ("t.TSV", table(sep="\t"), "utf-8", "(x=['a', 'größe'])"),
    "a .tsv with commas": ("t.tsv", table(), "utf-8", "(delimiter=',')"),
    "a spreadsheet": ("t.csv", table(sep=";", point=",", end="\r\n"), "utf-8-sig", "(delimiter=';', decimal=',')"),
    "decimal commas in quotes": ("t.csv", QUOTED, "utf-8", "(decimal=',')"),
    "an 8-bit encoding": ("t.csv", table(), "cp1252", "(encoding='cp1252')"),
    "UTF-16": ("t.tsv", table(sep="\t"), "utf-16", "(encoding='utf-16')"),
    "UTF-16 without a mark": ("t.csv", table(), "utf-16-le", "(encoding='utf-16-le')"),
    "a remark": ("t.csv", table(before="# exported, by hand\n"), "utf-8", "(skiprows=1)"),
    "two remarks and 8 bits": ("t.csv", table(before="für\nmich\n"), "cp1252", "(skiprows=2, encoding='latin-1')"),
}


@pytest.mark.parametrize("kind", READ)
def test_a_table_of_another_program_holds_the_same_rows(kind: str, tmp_path: Path) -> None:
    name, text, encoding, options = READ[kind]
    (tmp_path / name).write_bytes(text.encode(encoding))
    data = loaded(f"{tmp_path}/{name}{options}")
    np.testing.assert_array_equal(data.x, [row[:2] for row in ROWS])
    assert data.class_names == ("männlich", "weiblich") and data.y.tolist() == [0, 1] * 12
    assert data.notes[0].endswith("x is 2 columns, a, größe; y is y")


SEMICOLONS = table(sep=";", point=",")
LED = {  # a file, its encoding, the options that are given, and words of what is said
    "semicolons": (table(sep=";"), "utf-8", "", "single column, a;größe;y; .* delimiter=';'"),
    "commas after all": (table(), "utf-8", "(delimiter=';')", "single column"),
    "decimal commas": (SEMICOLONS, "utf-8", "(delimiter=';')", "column 'a' of .* is text, like '0,0'.* decimal=','"),
    "one of them": (SEMICOLONS, "utf-8", "(delimiter=';', x='größe')", "'größe' of .* is text, like '0,0'"),
    "a mark": (table().replace("-0.25", "?").replace("0.125", "?"), "utf-8", "(missing='mean')", r"like '\?'.*na_val"),
    "a mark in one column": (table().replace("-0.25", "n.d."), "utf-8", "", r"column 'größe' .* like 'n\.d\.'"),
    "points where commas were said": (table(), "utf-8", "(decimal=',')", "is text, like '0.0'"),
    "8 bits": (table(), "cp1252", "", "cannot be read as CSV: .* encoding='cp1252'"),
    "8 bits in the last row": (table(("a", "b", "y")).replace("männlich", "m") + "1,2,mä\n", "latin-1", "", "as CSV"),
    "8 bits in what is not used": (table(("a", "b", "c")) + "1,2,mä\n", "latin-1", "(y='a', x='b')", "not text in utf"),
    "UTF-16": (table(), "utf-16", "", "cannot be read as CSV: .* 'utf-16'"),
    "UTF-16 without a mark": (table(("a", "b", "y")), "utf-16-le", "", "it is not text in utf-8"),
    "UTF-8 after all": (table(), "utf-8", "(encoding='ascii')", "cannot be read as CSV"),
    "no encoding": (table(), "utf-8", "(encoding='hex')", "option encoding of t.csv: must be one that Python knows"),
    "a remark": (table(before="# exported\n"), "utf-8", "", "Expected 1 columns, got 3.*skiprows=1"),
    "another remark": (table(before="one\ntwo\n"), "utf-8", "(skiprows=1)", "Expected 1 columns, got 3"),
    "a remark with a comma": (table(before="# a, b\n"), "utf-8", "", "Expected 2 columns, got 3.*skiprows=1"),
    "a mark that is nowhere": (table(), "utf-8", "(na_values='-999')", "must have the text of na_values somewhere"),
    "a mark that is no text": (table(), "utf-8", "(na_values=-999)", "option na_values of t.csv"),
    "no character": (table(), "utf-8", "(decimal='')", "option decimal of t.csv"),
    "two characters": (table(), "utf-8", "(delimiter=';;')", "option delimiter of t.csv"),
    "no number of lines": (table(), "utf-8", "(skiprows=-1)", "option skiprows of t.csv"),
}


@pytest.mark.parametrize("kind", LED)
def test_what_is_not_read_is_refused_with_what_would_read_it(kind: str, tmp_path: Path) -> None:
    text, encoding, options, message = LED[kind]
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=message) as error:
        loaded(f"{tmp_path}/t.csv{options}")
    assert "\n" not in str(error.value)


def test_a_column_named_as_the_classes_but_in_another_case_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["a,A,b", *(f"{i % 2},{i},{2 * i}" for i in range(24))]))
    assert loaded(f"{tmp_path}/t.csv(y='a')").x.tolist() == [[i, 2 * i] for i in range(24)]


@pytest.mark.parametrize("quote", ["", '"'])
def test_marks_are_missing_values_in_every_column(quote: str, tmp_path: Path) -> None:
    rows = [f"{i},{i * 2},{i % 2},{'north south'.split()[i % 2]}" for i in range(24)]
    rows += [f"{quote}?{quote},48,0,north", f"25,-,{quote}?{quote},south", f"26,52,1,{quote}?{quote}", "NA,54,1,south"]
    (tmp_path / "t.csv").write_text("\n".join(["v,w,y,owner", *rows]))
    data = loaded(f"{tmp_path}/t.csv(na_values=['?', '-'], missing='drop')")
    assert data.x[:, 0].tolist() == [*range(24)] and data.owner_names == ("north", "south") and data.classes == 2
    assert data.notes[-1].startswith("4 rows of 28 dropped")
    (tmp_path / "t.csv").write_text("\n".join(["v,w,y,owner", *rows[:-3]]))
    f = made(taken(f"{tmp_path}/t.csv(na_values='?', missing='mean')", normalise="none"))
    train = np.concatenate([f.train.rows[k, : f.train.counts[k]] for k in range(f.clients)])
    (filled,) = np.flatnonzero(f.row == 24)
    np.testing.assert_allclose(f.x[filled, 0], np.mean(f.row[train][f.row[train] < 24]), rtol=1e-6)


def test_other_files_have_endings_in_any_case_too(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"v": np.arange(24.0), "y": [0, 1] * 12}), tmp_path / "T.PARQUET")
    assert loaded(f"{tmp_path}/T.PARQUET(y='y')").x.shape == (24, 1)
    saved(tmp_path / "t.npz", x=np.ones((24, 2)), y=np.arange(24) % 2).rename(tmp_path / "T.NPZ")
    assert loaded(tmp_path / "T.NPZ").x.shape == (24, 2)
