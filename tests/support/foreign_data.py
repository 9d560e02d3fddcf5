"""Small data sets as other tools write them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

TRUSTED = "/(trust=True)"  # after the name of PFLlib's folder


def pfllib(folder: Path, clients: int = 4, rows: int = 20, classes: int = 3, seed: int = 0) -> Path:
    """PFLlib's folder of images: three quarters of each client's rows train; the first pixel is the row's number."""
    rng = np.random.default_rng(seed)
    for k in range(clients):
        x = rng.normal(size=(rows, 1, 4, 4)).astype(np.float32)
        x[:, 0, 0, 0] = np.arange(k * rows, (k + 1) * rows)
        y = np.arange(rows) % classes
        cut = rows * 3 // 4
        pfllib_file(folder / "train" / f"{k}.npz", x[:cut], y[:cut])
        pfllib_file(folder / "test" / f"{k}.npz", x[cut:], y[cut:])
    (folder / "config.json").write_text(json.dumps({"num_clients": clients, "num_classes": classes, "alpha": 0.1}))
    return folder


def pfllib_file(file: Path, x: Any, y: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        np.savez_compressed(opened, data={"x": x, "y": y})  # type: ignore[arg-type]


def leaf(file: Path, users: dict[str, tuple[list[Any], list[Any]]], /, **changes: Any) -> Path:
    """A file of LEAF's: rows and labels of each user."""
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    } | changes
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def writers(folder: Path, split: bool = True) -> Path:
    """LEAF's folder of three writers of flat images, 16 pixels each."""
    rng = np.random.default_rng(0)

    def part(rows: int) -> dict[str, tuple[list[Any], list[Any]]]:
        return {
            name: (rng.random((rows, 16)).round(4).tolist(), (np.arange(rows) % 3).tolist())
            for name in ("f0001_41", "f0003_41", "f0012_08")
        }

    if split:
        leaf(folder / "train" / "all_data_0_keep_0_train_9.json", part(12))
        leaf(folder / "test" / "all_data_0_keep_0_test_9.json", part(6))
    else:
        leaf(folder / "all_data" / "all_data_0.json", part(12))
    return folder


def png(number: int, size: tuple[int, int] = (8, 8)) -> bytes:
    """A picture of the colour (number, 2 · number, 7)."""
    file = io.BytesIO()
    Image.new("RGB", size, (number, 2 * number, 7)).save(file, "PNG")
    return file.getvalue()


def hugging_face(schema: pa.Schema, **features: dict[str, Any]) -> pa.Schema:
    """A schema with the types that Hugging Face's library notes in it."""
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def pets(first: int, rows: int) -> pa.Table:
    """Pictures of cats, dogs and emus of three owners, as Hugging Face stores them."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64()), ("vet", pa.string())])
    numbers = range(first, first + rows)
    pictures = [{"bytes": png(i), "path": None} for i in numbers]
    label = {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}
    kinds = {"image": {"_type": "Image"}, "label": label, "vet": {"dtype": "string", "_type": "Value"}}
    columns = [pictures, [i % 3 for i in numbers], [f"vet {'abc'[i // 3 % 3]}" for i in numbers]]
    return pa.table(columns, schema=hugging_face(schema, **kinds))


def saved_to_disk(folder: Path, table: pa.Table, shards: int = 2) -> Path:
    """A Dataset as `save_to_disk` writes it: streams of Arrow's, and state.json."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    cuts = np.linspace(0, table.num_rows, shards + 1).astype(int)
    for name, first, last in zip(names, cuts, cuts[1:], strict=False):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.slice(first, last - first))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names], "_split": None}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def dataset_dict(folder: Path, **parts: pa.Table) -> Path:
    """A DatasetDict as `save_to_disk` writes it."""
    for name, table in parts.items():
        saved_to_disk(folder / name, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return folder
