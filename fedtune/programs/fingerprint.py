"""What identifies a program in records: its command, the commit of its folder, its interpreter, its scripts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

READ = (".py", ".sh", ".r", ".jl", ".yaml", ".yml", ".toml", ".cfg", ".ini")  # what programs read, and do not write
LARGEST = 10_000_000  # bytes of a file that is hashed
OURS = Path(__file__).parent
SECONDS = 10  # for a question to git or to an interpreter


def of(command: Sequence[str], folder: Path, search_path: str | None) -> dict[str, Any]:
    """The entries by name."""
    found: dict[str, Any] = {"command": list(command)}
    if commit := _commit(folder):
        found["commit"] = commit
    if interpreter := _interpreter(command[0], folder, search_path):
        found["interpreter"] = interpreter
    return found


def portable(command: Sequence[str]) -> list[str]:
    """The command with fedtune's own files by name alone: the next fedtune may lie elsewhere."""
    return [Path(word).name if Path(word).parent == OURS else word for word in command]


def scripts(command: Sequence[str], folder: Path, others: Mapping[str, Path]) -> dict[str, str]:
    """The hashes of the code and settings of the user's that the command names, and of others, by name."""
    theirs = (word for word in command if Path(word).suffix.lower() in READ and Path(word).parent != OURS)
    named = {**others, **{word: folder / word for word in theirs if "{" not in word}}
    small = {word: file for word, file in named.items() if os.path.isfile(file) and file.stat().st_size <= LARGEST}
    return {word: hashlib.sha256(file.read_bytes()).hexdigest() for word, file in small.items()}


def _commit(folder: Path) -> str:
    """The commit of the folder, with "+" if there are changes that are not committed; "" if it has none."""
    git = ["git", "-C", str(folder)]
    if not (head := _said([*git, "rev-parse", "HEAD"])):
        return ""
    changed = _said([*git, "status", "--porcelain", "--untracked-files=no", "."])
    return head + ("+" if changed or changed is None else "")


def _interpreter(first: str, folder: Path, search_path: str | None) -> str:
    """The version of a command's Python; "" if it begins with something else."""
    if not re.fullmatch(r"python[\d.]*", Path(first).name):
        return ""
    found = shutil.which(str(folder / first) if "/" in first else first, path=search_path)
    return (_said([found, "-V"]) or "") if found else ""


def _said(words: Sequence[str]) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
