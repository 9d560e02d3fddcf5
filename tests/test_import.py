"""`import fedtune` gives its names, and does nothing else to the process."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedtune

EXAMPLE = Path(__file__).parents[1] / "analysis" / "example"


def test_importing_loads_nothing_heavy_and_leaves_the_environment_alone():
    script = """
import os, sys, warnings
environment, filters, hooks = dict(os.environ), list(warnings.filters), list(sys.meta_path)
import fedtune
assert dict(os.environ) == environment and warnings.filters == filters and sys.meta_path == hooks
loaded = {"torch", "ray", "pandas", "optuna", "fedtune.trainables"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_report_is_made_without_what_trains(tmp_path: Path) -> None:
    """Of searches and a comparison.  Only an Optuna study needs Optuna and scikit-learn."""
    script = f"""
import sys
from pathlib import Path
from fedtune.analysis import importances
from fedtune.reporting import page
importances.RESAMPLES = 1
runs = [Path({str(EXAMPLE)!r}, name) for name in ("search", "program", "compare")]
page.write(runs, Path({str(tmp_path)!r}, "report.html"))
assert "optuna" in sys.modules, "the program's search has a study"
assert not (found := {{"torch", "ray", "fedtune.trainables", "fedtune.search_spaces"}} & set(sys.modules)), found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize("name", fedtune.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fedtune, name) is not None and name in dir(fedtune)


def test_another_name_is_refused_as_by_any_module():
    with pytest.raises(AttributeError, match="'fedtune' has no attribute 'serch'"):
        _ = fedtune.serch
    with pytest.raises(ImportError, match="cannot import name 'serch'"):
        from fedtune import serch  # noqa: F401
