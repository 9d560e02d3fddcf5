"""What the server of forks has imported ahead is what a process would have imported itself (support/forked/ours.py)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


SAME = """
import fedtune.core.metrics
assert {name: sys.modules[name] for name in there} == there and fedtune is there['fedtune']
assert fedtune.core.metrics is there['fedtune.core.metrics']
assert fedtune.__spec__.loader.get_source('fedtune')
for name in there: del sys.modules[name]
assert importlib.import_module('fedtune.core.metrics') is not there['fedtune.core.metrics']
"""
LATER = """
class Installed:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path or [PLACE])
sys.path[:] = [place for place in sys.path if place not in (PLACE, '')]
sys.meta_path.append(Installed())
ahead.load(('fedtune.core.trees',))
assert 'fedtune.core.trees' in ahead.modules and there.items() <= ahead.modules.items()
"""
OTHER = """
from fedtune.core import metrics
assert metrics is not there['fedtune.core.metrics'] and metrics.__file__.startswith(PLACE)
assert sys.modules['fedtune'].__file__.startswith(PLACE)
"""
CHECKPOINT = """
import torch
sys.path[0] = ROOT
ahead.load(('fedtune.core.trees',))
sys.path[0] = PLACE
before = ahead.modules['fedtune.core.trees'].Ragged
torch.serialization.add_safe_globals([runpy.run_path])
from fedtune.core.trees import Ragged
assert Ragged is not before
known = torch.serialization.get_safe_globals()
assert {Ragged, runpy.run_path} <= {*known} and before not in known
"""


@pytest.mark.parametrize(
    ("elsewhere", "code"),
    [(False, SAME), (False, LATER), (True, OTHER), (True, CHECKPOINT)],
    ids=["the same file, once", "later, however installed", "from another place", "checkpoints of two"],
)
def test_whoever_imports_fedtune_gets_what_it_would_have_imported_itself(
    elsewhere: bool, code: str, tmp_path: Path
) -> None:
    if elsewhere:
        shutil.copytree(ROOT / "fedtune" / "core", tmp_path / "fedtune" / "core")
        shutil.copy(ROOT / "fedtune" / "__init__.py", tmp_path / "fedtune")
    place = tmp_path if elsewhere else ROOT
    given = f"ROOT, FORKED, PLACE = {str(ROOT)!r}, {str(FORKED)!r}, {str(place)!r}\n"
    done = subprocess.run([sys.executable, "-c", given + SCRIPT + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
