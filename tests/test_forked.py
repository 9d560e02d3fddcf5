"""What the server of forks has imported ahead is what a process would have imported itself (support/forked/ours.py)."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORKED = ROOT / "tests" / "support" / "forked"
SCRIPT = """
import importlib, runpy, sys
sys.path[:0] = [ROOT, FORKED]
from ours import ImportedAhead
ahead = ImportedAhead()
sys.meta_path.insert(0, ahead)
ahead.load(("fedtune.core.metrics", "fedtune.core.objectives"))
there = dict(ahead.modules)
assert {"fedtune", "fedtune.core", "fedtune.core.metrics"} <= there.keys()
assert not [name for name in sys.modules if name.startswith("fedtune")]
sys.path[0] = PLACE
"""


def run(place: Path, code: str) -> None:
    given = f"ROOT, FORKED, PLACE = {str(ROOT)!r}, {str(FORKED)!r}, {str(place)!r}\n"
    done = subprocess.run([sys.executable, "-c", given + SCRIPT + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_whoever_imports_the_same_file_gets_all_of_it_once() -> None:
    run(
        ROOT,
        "import fedtune.core.metrics\n"
        "assert {name: sys.modules[name] for name in there} == there and fedtune is there['fedtune']\n"
        "assert fedtune.core.metrics is there['fedtune.core.metrics']\n"
        "assert fedtune.__spec__.loader.get_source('fedtune')\n"
        "for name in there: del sys.modules[name]\n"
        "assert importlib.import_module('fedtune.core.metrics') is not there['fedtune.core.metrics']\n",
    )


def test_what_is_imported_ahead_later_is_imported_beside_the_rest_however_fedtune_is_installed() -> None:
    run(
        ROOT,
        "class Installed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return importlib.machinery.PathFinder.find_spec(name, path or [PLACE])\n"
        "sys.path[:] = [place for place in sys.path if place not in (PLACE, '')]\n"
        "sys.meta_path.append(Installed())\n"
        "ahead.load(('fedtune.core.trees',))\n"
        "assert 'fedtune.core.trees' in ahead.modules and there.items() <= ahead.modules.items()\n",
    )


def test_whoever_has_fedtune_from_another_place_gets_that(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fedtune" / "core", tmp_path / "fedtune" / "core")
    shutil.copy(ROOT / "fedtune" / "__init__.py", tmp_path / "fedtune")
    run(
        tmp_path,
        "from fedtune.core import metrics\n"
        "assert metrics is not there['fedtune.core.metrics'] and metrics.__file__.startswith(PLACE)\n"
        "assert sys.modules['fedtune'].__file__.startswith(PLACE)\n",
    )


def test_of_two_fedtunes_a_checkpoint_is_the_later_ones(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "fedtune" / "core", tmp_path / "fedtune" / "core")
    shutil.copy(ROOT / "fedtune" / "__init__.py", tmp_path / "fedtune")
    run(
        tmp_path,
        "import torch\n"
        "sys.path[0] = ROOT\n"
        "ahead.load(('fedtune.core.trees',))\n"
        "sys.path[0] = PLACE\n"
        "before = ahead.modules['fedtune.core.trees'].Ragged\n"
        "torch.serialization.add_safe_globals([runpy.run_path])\n"
        "from fedtune.core.trees import Ragged\n"
        "assert Ragged is not before\n"
        "known = torch.serialization.get_safe_globals()\n"
        "assert {Ragged, runpy.run_path} <= {*known} and before not in known\n",
    )
