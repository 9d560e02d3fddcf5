"""What makes a site of pages that are written to be read in the repository: a hook of MkDocs, and one of Griffe's.

A link that leaves docs/ takes its file along, and the reader's choice of light or dark holds for pictures, too.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
PICTURE = re.compile(r'<picture>.*?srcset="([^"]+)".*?<img (.*?)src="([^"]+)"(.*?)>.*?</picture>', re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside of docs/, and what those pages link to in turn."""
    known = {f"docs/{file.src_uri}" for file in files}
    pages = [name for name in known if name.endswith(".md")]
    while pages:
        for target in _targets(pages.pop()):
            if target not in known and (ROOT / target).is_file() and not target.startswith("docs/"):
                known.add(target)
                files.append(File(target, str(ROOT), config.site_dir, False, inclusion=InclusionLevel.NOT_IN_NAV))
                pages += [target] * target.endswith(".md")
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as the site has it: its links, pictures by the reader's choice of light or dark, the Python API."""
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda link: _there(link, page.file), part) for part in parts[::2]]
    text = PICTURE.sub(r'<img \2src="\3#only-light"\4><img \2src="\1#only-dark"\4>', "".join(parts))
    names = r"^<!-- python: (\S+) -->$"
    return re.sub(names, lambda m: "\n\n".join(f"::: {n}" for n in m[1].split(",")), text, flags=re.M)


def _targets(name: str) -> list[str]:
    text = "".join(FENCE.split((ROOT / name).read_text())[::2])
    folder = os.path.dirname(name)
    return [os.path.normpath(os.path.join(folder, t.partition("#")[0])) for _, t in LINK.findall(text) if t[0] != "#"]


def _there(link: re.Match[str], file: File) -> str:
    """A link of the repository's as the site needs it; one to a folder is its words."""
    path, mark, anchor = link[2].partition("#")
    if not path:
        return link[0]
    here = os.path.relpath(str(file.abs_src_path), ROOT)
    full = os.path.normpath(os.path.join(os.path.dirname(here), path))
    if (ROOT / full).is_dir():
        return link[1]
    there = os.path.relpath(full.removeprefix("docs/"), os.path.dirname(here.removeprefix("docs/")))
    return f"[{link[1]}]({there}{mark}{anchor})"


class Docstrings(griffe.Extension):
    """Our docstrings as Markdown: columns of names become lists, examples become code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text in place."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


NAME = r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)"


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    blocks = re.split(r"\n{2,}", inspect.cleandoc(text))
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>> "):
        return "```pycon\n" + re.sub(r" +# doctest: .*", "", inspect.cleandoc(block)) + "\n```"
    if lines[0].startswith("    "):  # code, or a formula
        return block
    if re.match(rf"{NAME}  +\S", block):  # name     what it is
        lines = [re.sub(rf"^{NAME} +", r"- `\1`: ", line) for line in lines]
        lines = [line if line.startswith("- ") else f"  {line.strip()}" for line in lines]
    return "\n".join(re.sub(r"(`[^`]*`)|([\[*<])", lambda m: m[1] or f"\\{m[2]}", line) for line in lines)
