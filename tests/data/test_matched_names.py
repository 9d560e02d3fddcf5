"""Classes and owners are matched by name: across files of a data set, and where names are spelled in several ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from support.foreign_data import TRUSTED, dataset_dict, hugging_face, leaf, pfllib, pfllib_file, saved_to_disk
from support.user_data import loaded, made, refused, saved, taken

ANIMALS = ["cat", "dog", "emu"]
Y, OWNER = "label", "owner"


def coded(rows: int, names: list[str] | None = ANIMALS, column: str = Y, text: list[str] = ANIMALS) -> pa.Table:
    """Rows whose feature v is the place of their name in `text`; the column numbers the names of its own list."""
    place = [i % len(text) for i in range(rows)]
    codes = [(names or text).index(text[p]) for p in place]
    table = {"v": np.float64(place), "w": [0.5] * rows, Y: [i % 2 for i in range(rows)]}
    made = pa.table({**table, column: pa.array(codes, pa.int64())})
    return made.cast(hugging_face(made.schema, **{column: {"_type": "ClassLabel", "names": names}} if names else {}))


def hub(folder: Path, train: pa.Table, test: pa.Table) -> Path:
    for part, table in (("train", train), ("test", test)):
        folder.mkdir(exist_ok=True)
        parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
    return folder


def shards(folder: Path, *tables: pa.Table) -> Path:
    for i, table in enumerate(tables):
        folder.mkdir(exist_ok=True)
        parquet.write_table(table, folder / f"train-{i:05d}-of-00002.parquet")
    return folder


FORMS: dict[str, Callable[..., Path]] = {
    "parquet": hub,
    "shards": shards,
    "save_to_disk": lambda folder, train, test: dataset_dict(folder, train=train, test=test),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("first", "second"),
    [(ANIMALS, ANIMALS), (ANIMALS, ANIMALS[::-1]), (["dog", "emu", "cat"], ["yak", "cat", "dog", "emu"])],
)
def test_numbers_of_class_names_mean_what_their_file_says(
    form: str, first: list[str], second: list[str], tmp_path: Path
) -> None:
    data = loaded(FORMS[form](tmp_path / "d", coded(30, first), coded(18, second)))
    assert {*data.class_names} == {*first, *second} and data.classes == len({*first, *second})
    assert [data.class_names[y] for y in data.y] == [ANIMALS[int(v)] for v in data.x[:, 0]]


def test_owners_that_files_number_are_matched_by_name(tmp_path: Path) -> None:
    parts = coded(30, column=OWNER), coded(18, ["dog", "emu", "cat"], OWNER)
    f = made(taken(hub(tmp_path / "d", *parts), normalise="none"))
    assert [f.owner(k) for k in range(3)] == ANIMALS
    for k in range(3):
        assert {*f.x[f.train.rows[k, : f.train.counts[k]], 0], *f.x[f.test.rows[k, : f.test.counts[k]], 0]} == {k}


@pytest.mark.parametrize("code", [-1, 3])  # -1 is Hugging Face's for a row without a label
def test_owners_of_a_number_without_a_name_are_no_other_owners(code: int, tmp_path: Path) -> None:
    table = coded(30, column=OWNER)
    given = pa.array([code if i % 4 == 3 else owner for i, owner in enumerate(table[OWNER].to_pylist())], pa.int64())
    parquet.write_table(table.set_column(3, table.schema.field(OWNER), given), tmp_path / "t.parquet")
    data = loaded(f"{tmp_path}/t.parquet(y='label', owner='owner')")
    assert data.owner_names == tuple(map(str, sorted({code, 0, 1, 2})))


def test_a_feature_that_files_number_is_matched_by_name(tmp_path: Path) -> None:
    folder = hub(tmp_path / "d", coded(30, column="kind"), coded(18, ANIMALS[::-1], "kind"))
    data = loaded(f"{folder}/(y='label')")
    assert len({*zip(data.x[:, 0], data.x[:, 2], strict=True)}) == 3  # a number for each name


def test_dictionaries_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    def of(names: list[str]) -> pa.Table:
        table = coded(18, names)
        values = pa.DictionaryArray.from_arrays(table[Y].combine_chunks().cast(pa.int8()), names)
        return table.replace_schema_metadata().set_column(2, Y, values)

    data = loaded(hub(tmp_path / "d", of(ANIMALS), of(ANIMALS[::-1])))
    assert [data.class_names[y] for y in data.y] == [ANIMALS[int(v)] for v in data.x[:, 0]]


def nested(names: list[str]) -> pa.Table:
    """Rows of lists of class labels."""
    table = pa.table({"v": [[0, 1]] * 18, Y: [i % 2 for i in range(18)]})
    kind = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": names}}
    return table.cast(hugging_face(table.schema, v=kind))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (coded(18), coded(18, None), "classes of label alike, but one has no names and another cat, dog, emu; save"),
        (coded(18, None), coded(18), "but one has cat, dog, emu and another no names"),
        (nested(ANIMALS), nested(ANIMALS[::-1]), "classes of v alike, but one has emu, .* and another cat, dog, emu"),
        (coded(18), coded(18, ["ox"], text=["ox"]).set_column(2, Y, pa.array([3] * 18)), "Index 3 out of bounds"),
    ],
)
def test_numbers_that_cannot_be_matched_are_refused(
    train: pa.Table, test: pa.Table, message: str, tmp_path: Path
) -> None:
    if "Index" in message:
        test = test.cast(coded(1, ["ox"], text=["ox"]).schema)
    refused(message, hub(tmp_path / "d", train, test))


def test_an_unused_part_need_not_name_its_classes(tmp_path: Path) -> None:
    data = loaded(dataset_dict(tmp_path / "d", train=coded(30), test=coded(18), unsupervised=coded(6, None)))
    assert data.class_names == tuple(ANIMALS)


@pytest.mark.parametrize(("train", "test"), [([0.0, 1.0], ["0", "1"]), (["0", "1"], [0, 1])])
def test_labels_are_numbers_in_all_files_or_in_none(train: list[Any], test: list[Any], tmp_path: Path) -> None:
    rows, message = [[0.1, 0.2]] * 6, "must be all numbers or all text, but holds both"
    for part, y in (("train", train), ("test", test)):
        leaf(tmp_path / "leaf" / part / "x.json", {"a": (rows, y * 3), "b": (rows, y * 3)})
    refused(message, tmp_path / "leaf")
    pfllib_file(pfllib(tmp_path / "pf") / "test" / "1.npz", np.zeros((5, 1, 4, 4), np.float32), np.array([*"01201"]))
    refused(message, f"{tmp_path}/pf{TRUSTED}")


def test_a_blank_among_next_characters_is_a_class(tmp_path: Path) -> None:
    leaf(tmp_path / "d" / "x.json", {n: (["to be or"] * 12, [*"a A."] * 3) for n in ("HAMLET", "OPHELIA")})
    data = loaded(f"{tmp_path}/d/(text='characters')")
    assert data.class_names == (".", "A", "a", "space")
    assert any(note.endswith("that differ only in case stay different: 'A' and 'a'") for note in data.notes)


UNLIKE = {
    "a final dot": ("<=50K", "<=50K.", r"'<=50K' and '<=50K\.' do not"),
    "a blank": ("north", "north ", "'north' and 'north ' do not"),
    "a blank in front": ("north", " north", "' north' and 'north' do not"),
    "two blanks inside": ("new york", "new  york", "'new  york' and 'new york' do not"),
    "a blank that does not break": ("new york", "new\u00a0york", r"'new york' and 'new\\xa0york' do not"),
    "Unicode form": ("caf\u00e9", "cafe\u0301", r"'cafe\\u0301' and 'caf\\xe9' do not"),
}


KINDS = ("csv", "parquet", "npz", "leaf")


def several(kind: str, folder: Path, names: list[str], column: str) -> Path:
    """A data set of 24 rows in a kind of file; a column has these names in turn, y else two numbers."""
    table: dict[str, Any] = {"v": np.arange(24.0), "w": np.arange(24.0), "y": [i % 2 for i in range(24)]}
    table[column] = [names[i % len(names)] for i in range(24)]
    if kind == "leaf":
        users = names if column == OWNER else ["a", "b"]
        rows = {u: ([[0.5, 0.1]] * 12, table["y"][12 * i : 12 * i + 12]) for i, u in enumerate(users)}
        return leaf(folder / "t.json", rows)
    if kind == "npz":
        return saved(folder / "t.npz", x=np.column_stack([table.pop("v"), table.pop("w")]), **table)
    if kind == "csv":
        rows = ["\n" + ",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (folder / "t.csv").write_text(",".join(table) + "".join(rows), "utf-8")
        return folder / "t.csv"
    if kind == "dictionary":
        table[column] = pa.array(table[column]).dictionary_encode()
    parquet.write_table(pa.table(table), folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.parametrize("column", ["y", OWNER])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unlike", UNLIKE)
def test_names_that_a_reader_takes_for_the_same_are_refused(
    unlike: str, kind: str, column: str, tmp_path: Path
) -> None:
    one, other, said = UNLIKE[unlike]
    refused(
        f"names in .* a final dot or Unicode form, but {said}; write", several(kind, tmp_path, [one, other], column)
    )


@pytest.mark.parametrize("names", [["north", "nord"], [".", "..."], ["a", "ä"], ["1.5 mg", "15 mg"], ["a", "A"]])
def test_names_that_differ_for_a_reader_stay(names: list[str], tmp_path: Path) -> None:
    for kind in KINDS:
        assert loaded(several(kind, tmp_path, names, "y")).class_names == tuple(sorted(names))
        assert loaded(several(kind, tmp_path, names, OWNER)).owner_names == tuple(sorted(names))


def split_table(folder: Path, train: list[str], test: list[str]) -> Path:
    lines = [f"{i},{i},{train[i % len(train)]},train" for i in range(24)]
    lines += [f"{i},{i},{test[i % len(test)]},test" for i in range(12)]
    (folder / "t.csv").write_text("\n".join(["v,w,y,split", *lines]), "utf-8")
    return folder / "t.csv"


def split_pictures(folder: Path, train: list[str], test: list[str]) -> Path:
    for part, names in (("train", train), ("test", test)):
        for name in names:
            (folder / "p" / part / name).mkdir(parents=True)
            for i in range(6):
                Image.new("RGB", (2, 2), (i, i, i)).save(folder / "p" / part / name / f"{i}.png")
    return folder / "p"


@pytest.mark.parametrize("write", [split_table, split_pictures])
def test_classes_that_no_training_row_has_are_told(write: Callable[..., Path], tmp_path: Path) -> None:
    data = loaded(write(tmp_path, ["dog", "cat"], ["dog", "emu", "yak"]))
    assert data.class_names == ("cat", "dog", "emu", "yak")
    assert data.notes[-1].startswith("2 classes of ") and data.notes[-1].endswith(" without training rows: emu, yak")
    (tmp_path / "same").mkdir()
    assert not any("without" in note for note in loaded(write(tmp_path / "same", ["dog", "cat"], ["dog"])).notes)


@pytest.mark.parametrize("write", [split_table, split_pictures])
def test_a_class_in_another_case_needs_training_rows(write: Callable[..., Path], tmp_path: Path) -> None:
    message = "only in case must all have training rows, but of 'Dog' and 'dog' one has none"
    refused(message, write(tmp_path, ["dog", "cat"], ["Dog", "cat"]))
    (tmp_path / "form").mkdir()
    forms = [[normalize(form, "café"), "a"] for form in ("NFD", "NFC")]
    refused("Unicode form, but .*'caf.xe9'", write(tmp_path / "form", *forms))
    (tmp_path / "letters").mkdir()
    letters = loaded(write(tmp_path / "letters", ["a", "A", "b"], ["a", "B"]))
    assert letters.class_names == ("A", "B", "a", "b")
    assert letters.notes[-2].startswith("1 class of ") and letters.notes[-2].endswith("without training rows: B")
    assert letters.notes[-1].endswith("stay different: 'A' and 'a', 'B' and 'b'")


WRITTEN: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "room codes": (["1E1", "10", "2E1", "20"], ("10", "1E1", "20", "2E1")),
    "exponents only": (["1e1", "2E0", "10e0"], ("10e0", "1e1", "2E0")),
    "a negative exponent": (["5e-1", "0.5"], ("0.5", "5e-1")),
    "19 digits": (["1234567890123456789", "1234567890123456790"], ("1234567890123456789", "1234567890123456790")),
    "18 digits": (["123456789012345678", "123456789012345679"], ("123456789012345678", "123456789012345679")),
    "16 digits beside a point": (["1.0", "9007199254740993", "9007199254740992"],
                                 ("1.0", "9007199254740992", "9007199254740993")),
    "16 digits": (["1.000000000000000", "1.0000000000000001"], ("1.000000000000000", "1.0000000000000001")),
    "a leading zero": (["01", "1", "1.0"], ("01", "1", "1.0")),
    "a name among numbers": (["1.0", "1.00", "x"], ("1.0", "1.00", "x")),
    "whole numbers": (["9", "10"], ("9", "10")),
    "reals that are whole": (["2.0", "10.0", "3."], ("2", "3", "10")),
}  # fmt: skip


@pytest.mark.parametrize("column", ["y", OWNER])
@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary"])
@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_not_plainly_a_number_is_a_name(written: str, kind: str, column: str, tmp_path: Path) -> None:
    texts, names = WRITTEN[written]
    data = loaded(several(kind, tmp_path, texts, column))
    found, numbers = (data.class_names, data.y) if column == "y" else (data.owner_names, data.owner)
    assert found == names and len(data.notes) == 1
    by_text = {t: names[numbers[i]] for i, t in enumerate(texts)}
    assert len({*by_text.values()}) == len(texts) and all(t.startswith(n) for t, n in by_text.items())


@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary"])
def test_one_number_written_in_two_ways_is_one_with_a_word(kind: str, tmp_path: Path) -> None:
    data = loaded(several(kind, tmp_path, ["1.00", "1.0", "2", "2.0"], "y"))
    assert data.class_names == ("1", "2") and data.y.tolist() == [0, 0, 1, 1] * 6
    assert data.notes[-1] == "column y holds numbers, so 1.0 and 1.00 are the same"
    data = loaded(several(kind, tmp_path, ["7", "7.0", "8"], OWNER))
    assert data.owner_names == ("7", "8") and "column owner holds numbers, so 7 and 7.0 are the same" in data.notes


def test_whole_numbers_of_19_digits_are_exact(tmp_path: Path) -> None:
    high = 2**63 - 1
    numbers = pa.array([high - i % 3 for i in range(23)] + [None])
    for column in ("y", OWNER):
        table = pa.table({"v": np.arange(24.0), "y": [i % 2 for i in range(24)]} | {column: numbers})
        parquet.write_table(table, tmp_path / "t.parquet")
        data = loaded(f"{tmp_path}/t.parquet(missing='drop')")
        names = data.class_names if column == "y" else data.owner_names
        assert names == (str(high - 2), str(high - 1), str(high))


def test_saved_shards_of_one_part_are_matched(tmp_path: Path) -> None:
    folder = saved_to_disk(tmp_path / "d", coded(30), shards=2)
    second = coded(30, ANIMALS[::-1])
    with (
        pa.OSFile(str(folder / "data-00001-of-00002.arrow"), "wb") as file,
        pa.ipc.new_stream(file, second.schema) as s,
    ):
        s.write_table(second)
    data = loaded(folder)
    assert [data.class_names[y] for y in data.y] == [ANIMALS[int(v)] for v in data.x[:, 0]] and len(data.y) == 45
