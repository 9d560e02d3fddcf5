"""What a text cites, from one list of references: as LaTeX and pandoc's Markdown have it, and as BibTeX.

A citation stands between MARKS in a text.  Names in it are made printable, and so have no such letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from fedtune.studies.comparison.text import in_latex, in_markdown

MARKS = "\ue000", "\ue001"
REFERENCES = Path(__file__).with_name("references.bib")


def cite(*keys: str) -> str:
    """A marked citation, after a space; "" for no key."""
    return f" {MARKS[0]}{','.join(keys)}{MARKS[1]}" if any(keys) else ""


@cache
def _entries() -> dict[str, str]:
    texts = re.split(r"\n\n(?=@)", REFERENCES.read_text(encoding="utf-8").strip())
    return {str(re.match(r"@\w+\{(\w+),", text)[1]): text for text in texts}  # type: ignore[index]


def cited(sentences: Sequence[str]) -> list[str]:
    """The keys that are cited, in the order of the references."""
    keys = {key for line in sentences for of in re.findall(f"{MARKS[0]}(.*?){MARKS[1]}", line) for key in of.split(",")}
    return [key for key in _entries() if key in keys]


def bibtex(sentences: Sequence[str], version: str) -> str:
    """The cited entries.  version: of fedtune."""
    entries = _entries() | {"fedtune": _entries()["fedtune"].replace("\n}", f",\n  note = {{Version {version}}}\n}}")}
    return "\n\n".join(entries[key] for key in cited(sentences)) + "\n"


def latex(sentences: Sequence[str]) -> str:
    """The text in LaTeX, with \\cite."""
    texts = _written_out(sentences, in_latex, "~\\cite{{{}}}", ",")
    return "\n".join(
        ["% references.bib has its references; cite the papers of the algorithms and data, too", *texts, ""]
    )


def markdown(sentences: Sequence[str]) -> str:
    """The text in Markdown, with citations as pandoc reads them: [@KEY]."""
    return f"## Method\n\n{' '.join(_written_out(sentences, in_markdown, ' [@{}]', '; @'))}\n"


def _written_out(sentences: Sequence[str], escaped: Callable[[str], str], cite: str, between: str) -> list[str]:
    """Sentences with their texts escaped and their citations written out.  between: keys of one."""
    texts = []
    for line in sentences:
        parts = re.split(f" {MARKS[0]}(.*?){MARKS[1]}", line)
        cited = (cite.format(part.replace(",", between)) if i % 2 else escaped(part) for i, part in enumerate(parts))
        texts.append("".join(cited))
    return texts
