"""The pages' pictures are what the code draws, are shown where they belong, and can be read."""

import itertools
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest
from matplotlib.ft2font import FT2Font

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "pictures").glob("*-light.svg"))
NAMES = [f.name.removesuffix("-light.svg") for f in FILES]
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SHOWN = re.compile(
    r'<picture>\n  <source media="\(prefers-color-scheme: dark\)" srcset="(\S+)-dark\.svg">\n'
    r'  <img alt="([^"]+)" src="(\S+)-light\.svg">\n</picture>'
)


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """docs/figures.py, whose modules lie beside it."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import figures as module
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return module


def test_there_is_a_file_for_light_and_for_dark_pages_of_every_picture(figures: ModuleType) -> None:
    assert sorted(figures.PICTURES) == NAMES and len(NAMES) >= 14
    assert {f"{n}-dark.svg" for n in NAMES} == {f.name for f in (ROOT / "docs" / "pictures").glob("*-dark.svg")}


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_what_the_code_draws(figures: ModuleType, name: str) -> None:
    for file, text in figures.drawn(name).items():
        assert file.read_text() == text, f"{file.name} is out of date: python docs/figures.py {name}"
        assert len(text) <= 60_000 and not re.search(r"\bnan\b|\binf\b|\$", text)


def test_pages_show_every_picture_and_say_what_it_shows(figures: ModuleType) -> None:
    shown = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        for dark, words, light in SHOWN.findall(text):
            name = Path(light).name
            assert dark == light and (page.parent / light).parent.resolve() == ROOT / "docs" / "pictures"
            assert words == figures.alternative(name), f"{page.name}: the alternative text of {name}"
            shown.add(name)
        assert len(SHOWN.findall(text)) == text.count("<picture>")
    assert sorted(shown) == NAMES


def boxes(file: Path) -> list[tuple[str, float, float, float, float]]:
    """Every text of a picture with its left, right, top and bottom, in letters as wide as browsers have them."""
    found = []
    for text in ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text"):
        kind = "DejaVuSansMono" if text.get("font-family") else f"DejaVuSans{'-Bold' * bool(text.get('font-weight'))}"
        font, size = FT2Font(FONTS / f"{kind}.ttf"), float(text.get("font-size", 12))
        font.set_size(size, 72)
        font.set_text((text.text or "").replace("τ", "t"), 0.0)
        wide = font.get_width_height()[0] / 64
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        before = {"start": 0.0, "middle": wide / 2, "end": wide}[text.get("text-anchor", "start")]
        if text.get("transform"):
            found.append((text.text or "", x - 0.7 * size, x, y - wide + before, y + before))
        else:
            found.append((text.text or "", x - before, x - before + wide, y - 0.7 * size, y))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_no_text_is_cut_or_lies_on_another(file: Path) -> None:
    wide, high = map(float, ET.parse(file).getroot().get("viewBox", "").split()[2:])
    texts = boxes(file)
    for words, left, right, top, bottom in texts:
        assert left >= -1 and right <= wide + 1 and top >= 0 and bottom <= high - 4, f"cut: {words}"
    for (one, l1, r1, t1, b1), (two, l2, r2, t2, b2) in itertools.combinations(texts, 2):
        apart = r1 <= l2 or r2 <= l1 or b1 <= t2 or b2 <= t1
        assert apart, f"{one!r} lies on {two!r}"
