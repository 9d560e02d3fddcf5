"""What Weights & Biases wrote offline, read without it: a log in LevelDB's format of its protocol's messages."""

import json
from pathlib import Path
from typing import Any

BLOCK, HEAD = 32768, 7  # bytes of a block, and of what stands before a chunk in it
FULL, FIRST, MIDDLE, LAST = range(1, 5)


def records(file: Path) -> list[Any]:
    """The messages of a .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part, found = file.read_bytes(), HEAD, b"", []  # the file begins with a mark of that length
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            break
        part = (b"" if kind in (FULL, FIRST) else part) + data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (FULL, LAST):
            found.append(Record.FromString(part))
    return found


def run_of(file: Path) -> dict[str, Any]:
    """A run: its id, configuration, rows by step, summary and exit status (None if it has none)."""
    out: dict[str, Any] = {"rows": {}, "summary": {}, "exit": None, "config": {}}
    for record in records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config = {c.key: json.loads(c.value_json) for c in record.run.config.update}
            out |= {"id": record.run.run_id, "group": record.run.run_group, "project": record.run.project}
            out["config"] |= {n: v for n, v in config.items() if n != "_wandb"}
        elif kind == "history":
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            out["rows"][record.history.step.num] = {n: v for n, v in row.items() if not n.startswith("_")}
        elif kind == "summary":
            out["summary"] |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
        elif kind == "exit":
            out["exit"] = record.exit.exit_code
    return out
