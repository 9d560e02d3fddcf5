"""The folder of a search whose driver died."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtune.runs.files import write_json


def broken_off(run: Path, record: dict[str, Any], logged: dict[str, list[dict]], how: dict[str, str]) -> Path:
    """What Tune leaves: the trials' states, and of each its log, whose last line is cut off."""
    run.mkdir()
    write_json(run / "run.json", record)
    states = [[json.dumps({"trial_id": t, "status": s}), "{}"] for t, s in how.items()]
    write_json(run / "experiment_state-1.json", {"trial_data": states})
    for trial, rows in logged.items():
        (folder := run / f"{record['algorithm']}-{trial}").mkdir()
        (folder / "result.json").write_text("\n".join(map(json.dumps, rows)) + '\n{"cut of')
    return run
