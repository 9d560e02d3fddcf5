"""The site of docs/ is made without a warning, and a page of it asks nothing of any other host."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there_and_found_by_search(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / name).is_file() and f'"{name}' in index, name


def test_nothing_is_asked_of_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 30
    for page in pages:
        asked = re.findall(
            r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|srcset|href)=\"?(https?:[^\s\">]+)", page.read_text()
        )
        assert asked == [], page


def test_public_names_are_shown_with_their_docstrings(site: Path) -> None:
    text = (site / "reference" / "python.html").read_text()
    for name in ("fedtune.Search", "fedtune.Phase", "fedtune.analysis.plots.importance"):
        assert f'id="{name}"' in text, name
    assert "<!-- python:" not in text
