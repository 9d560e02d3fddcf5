"""One small data set in every format that fedtune reads.  Its numbers come of whole numbers, alike everywhere."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

CLIENTS, ROWS, CLASSES = 4, 20, 3
SPLITS = ("train", "train", "train", "val", "test")


def rows(width=5, features=None):
    """A function that gives rows: four owners, twenty rows each, some of which tell their class."""
    i, j = np.arange(CLIENTS * ROWS)[:, None], np.arange(features or width)
    y = i[:, 0] // 2 % CLASSES
    x = (i * i * 37 + i * (j + 3) * 101 + j * j) % 97 / 97 + (j == y[:, None])
    return {"x": x, "y": y, "owner": i[:, 0] // ROWS, "split": [SPLITS[n % len(SPLITS)] for n in i[:, 0]]}


def table(missing=False):
    """The same as a table; missing: without a value here and there."""
    data = rows()
    x = (
        np.where(np.arange(data["x"].size).reshape(data["x"].shape) % 41 == 7, np.nan, data["x"])
        if missing
        else data["x"]
    )
    named = {f"feature {j}": x[:, j] for j in range(x.shape[1])}
    return pd.DataFrame(named | {"sick": [("no", "a bit", "yes")[n] for n in data["y"]], "clinic": data["owner"]})


def image(n):
    """The picture of row n, eight by eight bytes of three colours."""
    i, j, colour = np.meshgrid(np.arange(8), np.arange(8), np.arange(3), indexing="ij")
    return ((i * (n + 3) + j * j * (n % 7 + 1) + colour * 31 + 90 * (n // 2 % CLASSES == colour)) % 256).astype(
        np.uint8
    )


def text(n):
    """The words of row n."""
    return " ".join(f"w{(n * k + n // 2 % CLASSES * 5) % 23}" for k in range(1, 7))


def write():
    """Every file, in this folder."""
    data = rows()
    np.savez("rows.npz", **data)
    np.savez("mine.npz", row=np.arange(80), client=np.arange(80) % 3, split=np.arange(80) // 3 % 5 // 2)
    table().to_csv("visits.csv", index=False, sep=";")
    table(missing=True).to_parquet("visits.parquet")
    pd.DataFrame({"said": [text(n) for n in range(80)], "y": data["y"], "client": data["owner"]}).to_csv("said.csv")
    for n in range(80):
        where = Path("pictures", SPLITS[n % len(SPLITS)], "cat dog emu".split()[data["y"][n]])
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image(n)).save(where / f"{n:02d}.png")
    leaf(data)
    pfllib(data)
    hugging_face(data)


def leaf(data):
    """LEAF's folder: users' rows and classes as JSON."""
    for part, kept in {"train": ("train", "val"), "test": ("test",)}.items():
        users = {}
        for n in np.flatnonzero(np.isin(data["split"], kept)):
            user = users.setdefault(f"f{data['owner'][n]:04d}", {"x": [], "y": []})
            user["x"].append(data["x"][n].tolist())
            user["y"].append(int(data["y"][n]))
        content = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
        Path("leaf", part).mkdir(parents=True)
        Path("leaf", part, "all_data.json").write_text(json.dumps(content))


def pfllib(data):
    """PFLlib's folder: a pickled dictionary of each client's rows."""
    for part in ("train", "test"):
        Path("pfllib", part).mkdir(parents=True)
        for k in range(CLIENTS):
            of = (data["owner"] == k) & ((np.array(data["split"]) == "test") == (part == "test"))
            np.savez(f"pfllib/{part}/{k}.npz", data={"x": data["x"][of].astype(np.float32), "y": data["y"][of]})
    Path("pfllib", "config.json").write_text(json.dumps({"num_clients": CLIENTS, "num_classes": CLASSES}))


def hugging_face(data):
    """A Dataset as `save_to_disk` writes it."""
    folder = Path("saved")
    folder.mkdir()
    features = {"label": {"names": ["no", "a bit", "yes"], "_type": "ClassLabel"}}
    columns = {"x": data["x"].tolist(), "label": data["y"], "owner": data["owner"]}
    content = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, content.schema) as stream:
        stream.write_table(content)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": None}))
    (folder / "dataset_info.json").write_text("{}")
