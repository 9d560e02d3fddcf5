"""A folder of the current directory named like one of our packages hides none of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedtune.user_code import sibling_packages

ROOT = Path(sibling_packages.__file__).parents[2]
TINY = (
    "--algo",
    "gfpl",
    "--trials",
    "1",
    "--rounds",
    "1",
    "--clients",
    "4",
    "--scheduler",
    "none",
    "--final-seeds",
    "0",
    "--no-dashboard",
)


@pytest.fixture(params=["trainables", "search_spaces", "analysis"])
def crowded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with a folder of each name: one is empty, and importing one of the others ends the process."""
    for name in sibling_packages.NAMES:
        (tmp_path / name).mkdir()
        if name != request.param:
            (tmp_path / name / "__init__.py").write_text("raise SystemExit(99)\n")
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that finds no modules but those of the environment and of its folder; a command imports all itself."""
    forked = "no" if "-m" in arguments else "yes"
    paths = {"PYTHONPATH": str(Path(__file__).parents[1] / "support" / "forked"), "FEDTUNE_FORK": forked}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, env=os.environ | paths
    )


def test_a_pinned_name_is_imported_from_beside_fedtune(crowded):
    script = """
from fedtune.user_code import sibling_packages
sibling_packages.pin()
import analysis.theme, search_spaces.gfpl, trainables.gfpl
print(analysis.theme.__file__, search_spaces.gfpl.__file__, trainables.gfpl.__file__, sep="\\n")
"""
    done = python(crowded, "-c", script)
    assert done.stdout.split() == [
        str(ROOT / name) for name in ("analysis/theme.py", "search_spaces/gfpl.py", "trainables/gfpl.py")
    ], done.stderr


def test_pinning_replaces_a_foreign_package_that_was_imported_before(tmp_path):
    (tmp_path / "trainables").mkdir()
    (tmp_path / "trainables" / "__init__.py").touch()
    (tmp_path / "trainables" / "other.py").write_text("what = 'foreign'\n")
    script = """
import sys
import trainables.other as held
from fedtune.user_code import sibling_packages
sibling_packages.pin()
assert "trainables.other" not in sys.modules and held.what == "foreign"
import trainables
print(trainables.__file__)
"""
    assert python(tmp_path, "-c", script).stdout.split() == [str(ROOT / "trainables" / "__init__.py")]


def test_a_users_own_analysis_is_left_alone_where_only_an_algorithm_is_wanted(tmp_path):
    (tmp_path / "analysis.py").write_text("what = 'foreign'\n")
    script = """
import analysis
from fedtune.experiment import registry
registry.find("fedavg")
import analysis
print(analysis.what)
"""
    assert python(tmp_path, "-c", script).stdout.split() == ["foreign"]


def test_pinning_twice_changes_nothing():
    sibling_packages.pin()
    before = sys.modules["trainables"]
    sibling_packages.pin()
    assert sys.modules["trainables"] is before


@pytest.mark.long
@pytest.mark.parametrize("crowded", ["trainables"], indirect=True)
def test_the_commands_find_their_own_algorithms_spaces_and_figures(crowded):
    searched = python(crowded, "-m", "fedtune.search", *TINY, "--name", "a", "--storage-path", str(crowded / "runs"))
    assert searched.returncode == 0, searched.stderr
    listed = python(crowded, "-m", "fedtune", "list", "gfpl")
    assert listed.returncode == 0 and "space default" in listed.stdout, listed.stderr
    reported = python(crowded, "-m", "fedtune", "report", str(crowded / "runs" / "a"))
    assert reported.returncode == 0 and (crowded / "runs" / "a" / "report.html").is_file(), reported.stderr
