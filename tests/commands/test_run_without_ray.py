"""`fedtune run`, a measured round and the benchmark of the engine do without Ray."""

import subprocess
import sys

import pytest
from support.rows import first

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{rest}
print("loaded:", *sorted({absent} & sys.modules.keys()))
"""
RUN = "from fedtune.__main__ import main; assert main({arguments}) == 0"
NOT_NEEDED = {"ray", "optuna", "pandas", "pyarrow", "plotly", "jinja2", "matplotlib", "yaml", "pydantic"}


def ended(rest: str, absent: set[str]) -> str:
    """What came out last where these packages cannot be imported."""
    script = SCRIPT.format(absent=absent, rest=rest)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    return (done.stdout.splitlines() or [""])[-1] + done.stderr


@pytest.mark.parametrize("algorithm", first(["gfpl", "fedpa"], 1))
def test_a_run_needs_pytorch_and_little_else(algorithm, tmp_path):
    arguments = ["run", "--algo", algorithm, "--scenario", "digits-w4", "--clients", "3", "--rounds", "1"]
    arguments += ["--output", f"{tmp_path}/rows.jsonl", "--save", f"{tmp_path}/model.pt"]
    assert ended(RUN.format(arguments=arguments), NOT_NEEDED) == "loaded:"
    assert (tmp_path / "rows.jsonl").read_text() and (tmp_path / "model.pt").exists()


def test_what_a_day_on_a_gpu_runs_needs_no_ray():
    modules = "fedtune, fedtune.cluster.gpu_share, benchmarks.engine, benchmarks.seeds, benchmarks.gpu_day"
    assert ended(f"import {modules}; fedtune.Algorithm, fedtune.hyper, fedtune.train", {"ray", "optuna"}) == "loaded:"
