"""fedtune has one top-level name: folders that a user calls trainables, search_spaces or analysis hide nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("trainables", "search_spaces", "analysis")
SEARCH = (
    "--algo gfpl --trials 1 --rounds 1 --clients 4 --scheduler none --final-seeds 0 --no-dashboard --name a "
    "--storage-path runs"
)


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder that has an analysis, trainables and search_spaces of its own; importing one of them ends the process.

    It is a user's, with a file that imports the first of them.
    """
    for name in PARTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(99)\n")
    return tmp_path


def python(folder: Path, *arguments: str, program: Path = Path(sys.executable), **environment: str) -> str:
    """What a process prints that runs in a folder; it imports all itself."""
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"FEDTUNE_FORK": "no"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def search_and_report(folder: Path, **how: object) -> None:
    """One trial, then what one looks at: on the way algorithms, spaces, figures are found in driver and workers."""
    python(folder, "-m", "fedtune.search", *SEARCH.split(), **how)  # type: ignore[arg-type]
    assert "space default" in python(folder, "-m", "fedtune", "list", "gfpl", **how)  # type: ignore[arg-type]
    python(folder, "-m", "fedtune", "report", "runs/a", **how)  # type: ignore[arg-type]
    assert (folder / "runs" / "a" / "report.html").is_file()


@pytest.mark.parametrize("name", PARTS)
def test_the_bare_name_is_refused(name):
    """Under two names there would be two of each class, and neither would be an instance of the other."""
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport {name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and f"import it as fedtune.{name}" in done.stderr.splitlines()[-1]


def test_they_are_found_beside_folders_of_the_same_name(crowded):
    script = """
from fedtune import analysis, search_spaces, trainables
import fedtune.analysis.theme, fedtune.search_spaces.gfpl, fedtune.trainables.gfpl
print(*(part.__path__[0] for part in (analysis, search_spaces, trainables)))
"""
    folders = [Path(p).resolve() for p in python(crowded, "-c", script).split()]
    assert folders == [ROOT / name for name in ("analysis", "search_spaces", "trainables")]


def test_the_links_lead_to_the_folders_beside():
    for name in PARTS:
        assert (ROOT / "fedtune" / name).is_symlink() and os.readlink(ROOT / "fedtune" / name) == f"../{name}"


@pytest.mark.long
def test_a_search_beside_folders_of_the_same_name(crowded):
    search_and_report(crowded)


@pytest.mark.long
def test_a_wheel_searches_in_a_folder_that_has_an_analysis_of_its_own(crowded, tmp_path_factory):
    """It is built from the clone and installed without network, into an environment without anything of the clone."""
    place = tmp_path_factory.mktemp("wheel")
    python(place, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", ".", str(ROOT))
    (wheel,) = place.glob("*.whl")
    python(place, "-m", "venv", "--without-pip", "env")
    program = place / "env" / "bin" / "python"
    python(place, "-m", "pip", "--python", str(program), "install", "-q", "--no-deps", "--no-index", str(wheel))
    libraries = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))  # whose .pth files are not read
    site = next((place / "env").glob("lib/python*/site-packages"))
    assert not (site / "fedtune" / "trainables").is_symlink()
    where = python(crowded, "-c", "import fedtune; print(fedtune.__file__)", program=program, PYTHONPATH=libraries)
    assert Path(where.strip()).is_relative_to(site)
    search_and_report(crowded, program=program, PYTHONPATH=libraries)
