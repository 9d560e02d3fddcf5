"""Tables by their columns: CSV, parquet, and Hugging Face's folders with pictures, text and lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.foreign_data import dataset_dict, hugging_face, pets, png, saved_to_disk
from support.user_data import loaded, made, refused, taken
from support.user_data import saved as written

from fedtune.data import datasets
from fedtune.studies import partition_view
from fedtune.user_code import user_files

HEAD = "age,weight,clinic,sick\n"


def csv(folder: Path, text: str = "", rows: int = 60) -> Path:
    """A table of patients; text: further rows."""
    lines = [
        f"{20 + i % 50},{50.5 + i},{'north south west'.split()[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(rows)
    ]
    (folder / "t.csv").write_text(HEAD + "\n".join(lines) + "\n" + text)
    return folder / "t.csv"


def test_a_csv_file_by_its_columns(tmp_path: Path) -> None:
    scenario = taken(f"{csv(tmp_path)}(y='sick', owner='clinic')", normalise="none")
    assert scenario.dataset == "t.csv(y='sick',owner='clinic')" and scenario.model == "mlp" and scenario.clients == 3
    f = made(scenario)
    assert f.shape == (2,) and f.class_names == ("no", "yes")
    assert [f.owner(k) for k in range(3)] == ["north", "south", "west"]
    north = {20 + i % 50 for i in range(0, 60, 3)}
    assert {int(v) for v in f.x[f.train.rows[0], 0]} <= north
    assert datasets.load(scenario.dataset).notes == (
        f"columns of {tmp_path}/t.csv: x is 2 columns, age, weight; y is sick; owner is clinic",
    )


def test_columns_of_usual_names_are_found(tmp_path: Path) -> None:
    text = "a,b,Label,client,split\n" + "\n".join(
        f"{i},{i % 7},{i % 2},0{i % 3},{'train test'.split()[i % 4 // 3]}" for i in range(60)
    )
    (tmp_path / "t.csv").write_text(text)
    data = loaded(tmp_path / "t.csv", partition="natural", owners=1)
    assert data.owner_names == ("00", "01", "02") and data.class_names == ("0", "1")  # names as they are written
    assert data.split is not None and (data.split == 2).sum() == 15 and data.x.shape == (60, 2)
    assert data.kind == "numbers"  # a column is no token
    assert loaded(f"{tmp_path}/t.csv(x='b', owner=None, split=None)").x.shape == (60, 1)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["1", "2", "10"], ("1", "2", "10")),
        (["1.0", "2.0", "0.0"], ("0", "1", "2")),
        (["007", "7", "8"], ("007", "7", "8")),
        (["true", "false", "true"], ("false", "true")),
        (["b", "a", "1"], ("1", "a", "b")),
    ],
)
def test_labels_are_what_is_written(labels: list[str], names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("v,y\n" + "\n".join(f"{i},{labels[i % 3]}" for i in range(30)))
    assert loaded(tmp_path / "t.csv").class_names == names


def test_missing_values_are_told_and_handled_as_it_is_said(tmp_path: Path) -> None:
    path = csv(tmp_path, ",80.5,north,yes\n40,NA,south,no\n")
    message = "no value of age, weight in 2 rows, the first is row 60: .*'drop'.*'mean'"
    refused(message, f"{path}(y='sick', owner='clinic')")
    dropped = loaded(f"{path}(y='sick', owner='clinic', missing='drop')")
    assert len(dropped.y) == 60 and dropped.notes[-1] == "2 rows of 62 dropped, without a value of age, weight"
    scenario = taken(f"{path}(y='sick', owner='clinic', missing='mean')", normalise="none")
    f = made(scenario)
    (row,), (other,) = np.flatnonzero(f.row == 60), np.flatnonzero(f.row == 61)
    train = np.concatenate([f.train.rows[k, : f.train.counts[k]] for k in range(3)])
    known = f.row[train] != 60
    np.testing.assert_allclose(
        f.x[row, 0], np.mean([40 if i == 61 else 20 + i % 50 for i in f.row[train][known]]), rtol=1e-6
    )
    assert f.x[row, 1] == 80.5 and f.x[other, 0] == 40
    assert "2 rows of 62 have the mean of training rows for age, weight" in datasets.load(scenario.dataset).notes


def test_parquet_gives_the_same_as_csv_and_leaves_out_the_index_of_pandas(tmp_path: Path) -> None:
    from pyarrow import csv as arrow

    table = arrow.read_csv(csv(tmp_path)).append_column("__index_level_0__", pa.array(range(60)))
    parquet.write_table(table, tmp_path / "t.parquet")
    options = "(y='sick', owner='clinic')"
    one, other = (loaded(f"{tmp_path}/t.{ending}{options}") for ending in ("csv", "parquet"))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.owner_names == other.owner_names


def test_what_pandas_called_its_index_is_a_column_of_features(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": np.arange(40) ** 2, "b": 1.5, "on": [True, None] * 20, "y": ["a", "b"] * 20})
    frame["on"] = frame["on"].astype("boolean")
    frame.set_index("age").to_parquet(tmp_path / "t.parquet")
    found = loaded(f"{tmp_path}/t.parquet(x=['age', 'b', 'on'], y='y', missing='mean')")
    np.testing.assert_array_equal(found.x[:, 0], np.arange(40) ** 2)
    assert found.x.shape == (40, 3) and found.x[0, 2] == 1 and np.isnan(found.x[1, 2])


def test_a_dataset_dict_of_pictures_is_its_splits(tmp_path: Path) -> None:
    folder = dataset_dict(tmp_path / "pets", train=pets(0, 60), test=pets(60, 24), unsupervised=pets(84, 9))
    scenario = taken(f"{folder}(owner='vet')", normalise="none")
    f = made(scenario)
    assert f.shape == (3, 8, 8) and f.class_names == ("cat", "dog", "emu") and f.owners[0] == ("vet a",)
    for table, first, last in ((f.train, 0, 60), (f.test, 60, 84)):
        for k in range(3):
            for row in table.rows[k, : table.counts[k]]:
                number = round(float(f.x[row, 0, 0, 0]) * 255)
                assert first <= number < last and f.y[row] == number % 3 and f.x[row, 2, 0, 0] == np.float32(7 / 255)
    assert "1 part not used, which no split is called: unsupervised" in datasets.load(scenario.dataset).notes
    picture = partition_view.counts(f, datasets.load(scenario.dataset))
    assert {*picture["class"]} == {"cat", "dog", "emu"} and picture["rows"].sum() == 84


def test_one_dataset_and_parquet_folders_are_read_alike(tmp_path: Path) -> None:
    one = loaded(saved_to_disk(tmp_path / "pets", pets(0, 60), shards=3))
    (tmp_path / "pq" / "data").mkdir(parents=True)
    parquet.write_table(pets(0, 40), tmp_path / "pq" / "data" / "train-00000-of-00001.parquet")
    parquet.write_table(pets(40, 20), tmp_path / "pq" / "data" / "test-00000-of-00001.parquet")
    other = loaded(tmp_path / "pq")
    rows = np.arange(60)
    order = np.r_[20:60, 0:20] if other.split is not None and other.split[0] == 2 else rows
    np.testing.assert_array_equal(one.x[rows], other.x[order])
    assert one.split is None and (other.split == 2).sum() == 20
    large = pets(0, 6).set_column(0, "image", [[{"bytes": png(i, (9, 9)), "path": None} for i in range(6)]])
    large = large.cast(pets(0, 1).schema)
    assert taken(
        saved_to_disk(tmp_path / "large", pa.concat_tables([pets(0, 54), large])), "iid", clients=3, image_size=4
    )


def test_text_and_lists_of_tokens_and_of_series(tmp_path: Path) -> None:
    y = [i % 2 for i in range(40)]
    saved_to_disk(tmp_path / "text", pa.table({"text": [f"Hello, world {i % 5}" for i in range(40)], "label": y}))
    refused("is text, like 'Hello, world 0': .*text='words'", tmp_path / "text")
    assert loaded(f"{tmp_path}/text(text='words')").x.shape == (40, 4)
    saved_to_disk(tmp_path / "ids", pa.table({"input_ids": [list(range(1, 4 + i % 3)) for i in range(40)], "label": y}))
    refused("must have the same length, but have 3 to 5; .* give length=128", tmp_path / "ids")
    tokens = loaded(f"{tmp_path}/ids(length=4)", x_as="tokens").x
    assert np.asarray(tokens)[:3].tolist() == [[1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 3, 4]]
    series = [np.arange(12.0).reshape(3, 4).tolist() for _ in range(40)]
    saved_to_disk(tmp_path / "series", pa.table({"window": series, "label": y}))
    assert made(taken(tmp_path / "series", "iid", clients=3, x_as="series")).shape == (3, 4)


@pytest.mark.parametrize("names", ["train val test".split(), [0, 1, 2]])
def test_the_vocabulary_is_that_of_training_rows_however_the_split_is_written(names: list, tmp_path: Path) -> None:
    words = ["known often", "known", "unheard"]
    rows = [f"{words[i % 3]},{i // 3 % 2},{names[i % 3]}" for i in range(36)]
    (tmp_path / "t.csv").write_text("\n".join(["a,y,split", *rows]))
    data = loaded(f"{tmp_path}/t.csv(text='words')")
    assert data.x[:3].tolist() == [[2, 3], [2, 0], [1, 0]] and "2 words numbered by frequency in tr" in data.notes[-1]


def test_a_table_of_pixels_is_images_when_a_shape_is_given(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 3}," + ",".join(str((i * p) % 256) for p in range(16)) for i in range(30))
    (tmp_path / "mnist.csv").write_text("label," + ",".join(f"pixel{p}" for p in range(16)) + "\n" + rows)
    assert made(taken(f"{tmp_path}/mnist.csv(shape=(1, 4, 4))", "iid", clients=3)).shape == (1, 4, 4)


def text(content: str | bytes, options: str = "") -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / "t.csv").write_bytes(raw)
        return f"{folder}/t.csv{options}"

    return write


def patients(options: str, more: str = "") -> Callable[[Path], str]:
    return lambda folder: f"{csv(folder, more)}{options}"


def columns(options: str = "", **values: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        table = {"v": list(np.arange(30.0)), "y": [i % 2 for i in range(30)]} | values
        parquet.write_table(pa.table({n: c for n, c in table.items() if c is not None}), folder / "t.parquet")
        return f"{folder}/t.parquet{options}"

    return write


def saved(damage: Callable[[Path], Any], options: str = "") -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        dataset_dict(folder / "pets", train=pets(0, 30), test=pets(30, 12))
        damage(folder / "pets")
        return f"{folder}/pets/{options}"

    return write


def one(table: pa.Table) -> Callable[[Path], str]:
    return lambda folder: str(saved_to_disk(folder / "one", table))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-300])


def state(**content: Any) -> Callable[[Path], str]:
    return saved(lambda f: (f / "train" / "state.json").write_text(json.dumps(content)))


def truncated_parquet(folder: Path) -> str:
    name = columns()(folder)
    cut(folder / "t.parquet")
    return name


def parts(*names: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        for i, name in enumerate(names):
            (folder / "pq" / name).parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pets(10 * i, 10), folder / "pq" / name)
        return str(folder / "pq")

    return write


DATES = pa.array(list(range(30)), pa.date32())
IMAGES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SEVERAL = hugging_face(
    pa.schema([("v", pa.int64()), ("fine", pa.int64()), ("coarse", pa.int64())]),
    fine={"_type": "ClassLabel", "names": ["a", "b"]},
    coarse={"_type": "ClassLabel", "names": ["c", "d"]},
)
WRONG: list[tuple[Callable[[Path], str], str]] = [  # a table, and a word of the rule that it breaks
    (patients(""), r"needs the column of classes: .*; its columns are age, weight, clinic, sick"),
    (patients("(y='sik')"), r"given as y: 'sik': did you mean 'sick'"),
    (patients("(y='sick', owner='clinics')"), "given as owner: 'clinics': did you mean 'clinic'"),
    (patients("(y='sick', x=['age', 'height'])"), "given as x: 'height': did you mean 'weight'"),
    (patients("(y='sick', x=['age', 'age'])"), "list of different ones"),
    (patients("(y='sick', x=['age', 'sick'])"), "must not hold the classes, but has 'sick'"),
    (patients("(y='sick', x=[3])"), "must be a column's name"),
    (patients("(y='sick', miss='drop')"), "unknown option of t.csv 'miss': did you mean 'missing'"),
    (patients("(y='sick', missing='zero')"), "option missing of t.csv: .* but got 'zero'"),
    (patients("(y='sick', text='word')"), "option text of t.csv: .* but got 'word'"),
    (patients("(y='sick', length=-1)"), "option length of t.csv: .* but got -1"),
    (patients("(y=3)"), "option y of t.csv: .* but got 3"),
    (patients("(y='sick')"), "column 'clinic' of .* is text, like 'north'"),
    (patients("(y='age', owner='clinic', x='weight')"), "has 50 values in 60 rows"),
    (columns("(y='v', x='y')"), "rows of each, but has 30 values in 30 rows"),
    (patients("(y='weight', owner='clinic', x='age')"), "holds real numbers"),
    (patients("(y='sick', owner='clinic')", "30,50,,yes\n"), "no value of clinic in 1 row, the first is row 60"),
    (patients("(y='sick', owner='clinic', missing='mean')", "30,50,north,\n"), "no value of sick in 1 row"),
    (patients("(y='sick', owner='clinic')", "30,50\n"), "cannot be read as CSV: .*Expected 4 columns, got 2"),
    (patients("(y='sick', owner='clinic')", "30,inf,north,yes\n"), "x of .* must be finite, but 1 rows are not"),
    (patients("(y='sick', owner='clinic', shape=(2, 2))"), "shape must have the 2 numbers of a row"),
    (text(""), "cannot be read as CSV: Empty CSV file"),
    (text("v,y\n"), "needs rows, but has none"),
    (text("v;y\n1;2\n"), "a single column, v;y"),
    (text("1.5,0\n2.5,1\n"), "needs the column of classes"),
    (text("v,v,y\n1,2,0\n"), "columns of .* must have different names, but two are called 'v'"),
    (text(",v,y\n0,1,0\n1,2,1\n"), "column 0 of .* has no name, as that of an index that pandas writes"),
    (text("y\n1\n0\n"), "a single column, y"),
    (text("v,y\n1,\xe9\n".encode("latin1")), "invalid UTF8 data; .* encoding='cp1252'"),
    (text("v,y,label\n1,0,1\n"), "has y and label; say which is y: y='y'"),
    (text("v,y\n,0\n,1\n,0\n,1\n", "(missing='drop')"), "needs rows, but has none without missing values"),
    (text("when,y\n2024-01-01,0\n2024-01-02,1\n"), "column 'when' of .* holds a date"),
    (text("v,y\n1,0\n2,1\n3,0\n", "(delimiter=';')"), "a single column, v,y"),
    (text("v,y,split\n" + "1,0,train\n2,1,fit\n3,0,test\n" * 4), "split of .* but has 'fit'"),
    (columns(v=pa.array(["a", "b"] * 15).dictionary_encode()), "column 'v' of .* holds categories; encode them"),
    (columns(v=DATES), "column 'v' of .* holds a date"),
    (columns(v=[b"\x00"] * 30), "row 0 of column v of .*parquet cannot be read as a picture"),
    (columns(v=pa.array([2**60 + i for i in range(30)]), w=list(np.arange(30.0))), "which float64 cannot represent"),
    (columns(v=pa.array([None] * 30, pa.float64())), "no value of v in 30 rows"),
    (columns("(missing='mean')", v=pa.array([None] * 30, pa.float64())), "a value of each feature in training rows"),
    (columns(v=[float("nan")] + [1.0] * 29), "no value of v in 1 row, the first is row 0"),
    (columns(v=[[1, None]] * 30), "column 'v' of .* has missing values inside its rows"),
    (columns(v=[["a"]] * 30), "column 'v' of .* must hold numbers, but holds string"),
    (columns("(length=3)", v=[[0.5], [1.5, 2.0]] * 15), "length is for rows of tokens, but .* holds double"),
    (columns(v=[{"a": 1}] * 30), "column 'v' of .* must be numbers or text, but holds a dict"),
    (columns(v=pa.array(["x"] * 30), w=pa.array(["z"] * 30)), "column 'v' of .* is text, like 'x'"),
    (columns(v=["1.5", "2"] * 15, w=[0.5] * 30), "column 'v' of .* is text, like '1.5'"),
    (columns(y=[[1]] * 30), "classes, owners and splits of .* must be whole numbers or names, but one is list"),
    (columns(y=pa.array([0, 1, None] * 10)), "no value of y in 10 rows"),
    (columns("(text='words')"), "text=… is for rows of text"),
    (truncated_parquet, "t.parquet cannot be read as parquet"),
    (parts("train-00000-of-00001.parquet", "more.parquet"), "must all be called train-…"),
    (parts("a/x.parquet", "b/x.parquet"), "must all be called train-…"),
    (saved(lambda f: cut(f / "train" / "data-00001-of-00002.arrow")), "00002.arrow cannot be read as Arrow"),
    (saved(lambda f: (f / "train" / "data-00001-of-00002.arrow").write_bytes(b"")), "cannot be read as Arrow"),
    (saved(lambda f: (f / "train" / "data-00001-of-00002.arrow").unlink()), "No such file"),
    (saved(lambda f: (f / "dataset_dict.json").write_text("{")), "dataset_dict.json cannot be read"),
    (saved(lambda f: (f / "dataset_dict.json").write_text('{"splits": ["fold"]}')), "No such file"),
    (
        saved(
            lambda f: (
                f.joinpath("test").rename(f / "fold2") and (f / "dataset_dict.json").write_text('{"splits": ["fold2"]}')
            )
        ),
        "needs a part train and a part test, but has fold2",
    ),
    (state(), "state.json cannot be read"),
    (state(_data_files=[]), "its _data_files lists no names"),
    (state(_data_files=[{}]), "save the data again"),
    (state(_data_files=[{"filename": "data-00000-of-00002.arrow"}], _indices_data_files=[{}]), "call flatten_indices"),
    (saved(lambda f: None, "(shape=(8, 8))"), "shape=… for arrays"),
    (saved(lambda f: None, "(x='vet')"), "column 'vet' of .*pets is text, like 'vet a'"),
    (saved(lambda f: None, "(delimiter=';')"), "unknown option of pets/ 'delimiter'"),
    (
        one(pets(0, 30).set_column(0, "image", pa.array([{"bytes": None, "path": "cat.png"}] * 30, IMAGES))),
        "row 0 of column image of .* has no bytes of a picture",
    ),
    (one(pets(0, 30).set_column(1, "label", pa.array([-1] * 30))), "must be classes from 0 on, but has -1"),
    (one(pets(0, 30).set_column(1, "label", pa.array([3] * 30))), "must be 0 to 2, because it names 3 classes"),
    (one(pa.table([[1] * 30, [0, 1] * 15, [0, 1] * 15], schema=SEVERAL)), "say which is y: y='fine'"),
]


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_a_wrong_table_is_refused_in_a_line(i: int, tmp_path: Path) -> None:
    write, message = WRONG[i]
    refused(message, write(tmp_path))


def test_options_are_part_of_the_name_that_is_kept(tmp_path: Path) -> None:
    name, files = user_files.take(f"{csv(tmp_path)}( y = 'sick',owner='clinic' )")
    assert name == "t.csv(y='sick',owner='clinic')" and files[0].name == "t.csv"
    assert user_files.reference(name) == f"{tmp_path}/t.csv(y='sick',owner='clinic')"
    assert user_files.plain_name(name) == "t.csv-y=-sick-owner=-clinic"
    many = f"t.csv(x={[f'column{i}' for i in range(40)]!r})"
    assert len(user_files.plain_name(many)) < 100 and user_files.plain_name(many) != user_files.plain_name(many + " ")


# -------------------------------------------------- CSV files as spreadsheets and old tools write them


ROWS = [(i / 8, -i / 4, ["männlich", "weiblich"][i % 2]) for i in range(24)]
NAMES = ("a", "größe", "y")


def table(head: tuple[str, ...] = NAMES, sep: str = ",", point: str = ".", before: str = "", end: str = "\n") -> str:
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
    refused(message, f"{tmp_path}/t.csv{options}")


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
    written(tmp_path / "t.npz", x=np.ones((24, 2)), y=np.arange(24) % 2).rename(tmp_path / "T.NPZ")
    assert loaded(tmp_path / "T.NPZ").x.shape == (24, 2)
