"""docs/how-to/python.md runs from top to bottom, and what it says of each step holds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python.md"
HOLDS = """
import dataclasses
begun = set(run.trials.loc[run.trials["rounds"] > 0, "trial"])  # one that diverges in its first round has no rows
assert run.state == "finished" and len(run.trials) == 4 and set(run.rounds["trial"]) == begun and begun
assert run.best["hyperparameters"]["start"] == 2 and "<table" in run._repr_html_()
assert "fedtune report" in open("report.html").read(1000)
assert list(rows["round"]) == [1, 2, 3, 4, 5, 6] and rows["val_acc"].between(0, 1).all()
assert len(study.trials) == 6 and study.trials[0].params == objective.default
assert {t.state.name for t in study.trials} <= {"COMPLETE", "PRUNED"} and study.best_value > 0
assert not results.errors and len(results.get_dataframe()) == 3 and results.get_dataframe()["val_acc"].notna().all()
assert len(population) == 2 and population["val_acc"].notna().all()  # what Ray draws without a seed may diverge
assert all(t["training_iteration"] == 6 or t.get("diverged") is True for t in population.to_dict("records"))
assert Proximal().mu == 0.01 and dataclasses.is_dataclass(Proximal)
print("held")
"""


@pytest.mark.long
def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(code) == 8
    script = tmp_path / "page.py"
    code.insert(6, "population = results.get_dataframe()\n")
    script.write_text("\n".join(code) + HOLDS)
    environment = os.environ | {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "FEDTUNE_FORK": "yes"}
    environment["RAY_ADDRESS"] = "local"  # else the Tuners join whatever Ray this machine has
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0 and done.stdout.endswith("held\n"), done.stderr[-3000:]
