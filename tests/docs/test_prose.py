"""Pages read well: sentences are short, and nothing is misspelt."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "deploy/README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
MEAN, LONGEST = 20, 45  # words of a sentence
ABBREVIATIONS = ("al", "e.g", "i.e", "cf", "vs", "eq", "Fig", "No", "approx")


def sentences(text: str) -> list[str]:
    """The sentences of a page: outside of code, tables, headings and comments; an item of a list ends one."""
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->|<picture>.*?</picture>", "", text, flags=re.M | re.S)
    text = re.sub(r"^(#+ |\||    ).*$", "", text, flags=re.M)
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n", re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.M))
    after = "".join(rf"(?<!\b{re.escape(a)}\.)" for a in ABBREVIATIONS)
    found = [s for block in blocks for s in re.split(rf"(?<=[.!?])[)\"'*]*{after}\s+", " ".join(block.split()))]
    return [sentence for sentence in found if words(sentence)]


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def measured(name: str) -> tuple[float, int, str]:
    """Words of a page's sentences: the mean, the most, and the sentence that has them."""
    found = sentences((ROOT / name).read_text()) or [""]
    longest = max(found, key=words)
    return sum(map(words, found)) / len(found), words(longest), longest


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name: str) -> None:
    mean, most, longest = measured(name)
    assert mean <= MEAN and most <= LONGEST, (
        f"{mean:.1f} words a sentence (at most {MEAN}), the longest has {most} ({LONGEST}): {longest}"
    )


def test_sentences_are_counted_as_one_reads_them() -> None:
    text = "# A title. Left out\n\nOne `fedtune run --x` two. Smith et al. found (see [this page](x.md#y)) it: ok!\n"
    assert sentences(text + "\n- an item\n- another. And more\n\n```\ncode. code.\n```\n| a. b | c |\n") == [
        "One CODE two.",
        "Smith et al. found (see this page) it: ok!",
        "an item",
        "another.",
        "And more",
    ]


def test_nothing_is_misspelt() -> None:
    """In pages and sources; tests misspell on purpose."""
    where = "README.md SECURITY.md CHANGELOG.md docs deploy fedtune trainables search_spaces analysis benchmarks"
    command = [sys.executable, "-c", "import sys, codespell_lib as c; sys.exit(c.main(*sys.argv[1:]))", *where.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
