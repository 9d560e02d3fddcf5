"""Configuration files that are written for each trial."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.programs import finish, python, start

from fedtune.core.errors import UserError
from fedtune.programs import workload

BASE = {"optimizer": {"name": "sgd", "lr": 0.5}, "layers": [{"width": 8}, {"width": "1e-3"}], "seed": 7, "tags": []}
BASES = {
    ".yaml": "# mine\noptimizer: {name: sgd, lr: 0.5}\nlayers: [{width: 8}, {width: 1e-3}]\nseed: 7\ntags: []\n",
    ".json": json.dumps(BASE),
    ".toml": "tags = []\nseed = 7\nlayers = [{width = 8}, {width = '1e-3'}]\n[optimizer]\nname = 'sgd'\nlr = 0.5\n",
}
READERS: dict[str, Any] = {".yaml": yaml.safe_load, ".json": json.loads, ".toml": tomllib.loads}
MORE = """
[write."{{folder}}/in/{{name}}{to}"]
from = "base{base}"
"optimizer.lr" = "{{lr}}"
layers.0.width = "{{width}}"
tags = ["{{name}}", "x-{{trial}}"]
seed = "{{seed}}"
[space]
lr = "0.0001..1 log"
width = "1..64"
name = ["a b", 'c"']
"""


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("to", BASES)
def test_a_trials_values_stand_in_their_types_in_a_file_of_its_own(tmp_path: Path, base: str, to: str) -> None:
    (tmp_path / f"base{base}").write_text(BASES[base])
    script = "import sys\nprint('acc: 0.5', open(sys.argv[1]).read())"
    program = python(tmp_path, script, MORE.format(base=base, to=to), 1, f"'{{folder}}/in/{{name}}{to}' {{seed}}")
    run = start(program, tmp_path, {"lr": 1e-4, "width": 16, "name": 'c"'}, seed=3)
    finish(run)
    written = READERS[to]((tmp_path / "trial" / "in" / f'c"{to}').read_text())
    layers = [{"width": 16}, {"width": "1e-3"}]
    assert written == {
        "optimizer": {"name": "sgd", "lr": 1e-4},
        "layers": layers,
        "tags": ['c"', f"x-{run.trial}"],
        "seed": 3,
    }
    assert type(written["optimizer"]["lr"]) is float and type(written["layers"][0]["width"]) is int
    found = workload.of_program(program)
    assert program.seed == "{seed}" and found.traits.repeatable
    (text,) = found.to_best("", {"lr": 0.25, "width": 2}, None)["files"].values()
    assert READERS[to](text)["optimizer"]["lr"] == 0.25
    before = found.to_plain()
    (tmp_path / f"base{base}").write_text(BASES[base].replace("sgd", "adam"))
    assert found.to_plain() != before  # so no outcome of the earlier one is taken for its own


def test_a_key_below_a_value_that_is_no_table_is_refused(tmp_path: Path) -> None:
    more = '[write."{folder}/a.json"]\noptimizer = 1\n"optimizer.lr" = "{lr}"\n[space]\nlr = "0.1..1"\n'
    with pytest.raises(UserError, match="'lr' must be in a table, but is in 1"):
        finish(start(python(tmp_path, "print('acc: 0.5')", more, 1, "{folder}/a.json"), tmp_path, {"lr": 0.5}))


def test_what_is_nothing_is_left_out_of_toml(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("a: null\nb: {c: null, d: 1}\nlr: 1\n")
    more = '[write."{folder}/a.toml"]\nfrom = "base.yaml"\nlr = "{lr}"\n[space]\nlr = "0.1..1"\n'
    finish(start(python(tmp_path, "print('acc: 0.5')", more, 1, "{folder}/a.toml"), tmp_path, {"lr": 0.5}))
    assert tomllib.loads((tmp_path / "trial" / "a.toml").read_text()) == {"b": {"d": 1}, "lr": 0.5}
