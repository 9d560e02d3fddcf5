"""What identifies a program in records: its command, the commit of its folder, its scripts."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

READ = (".py", ".sh", ".r", ".jl", ".yaml", ".yml", ".toml", ".cfg", ".ini")  # what programs read, and do not write
OURS = Path(__file__).parent
SECONDS = 10  # for a question to git


def portable(command: Sequence[str]) -> list[str]:
    """The command with fedtune's own files by name alone: the next fedtune may lie elsewhere."""
    return [Path(word).name if Path(word).parent == OURS else word for word in command]


def scripts(command: Sequence[str], folder: Path, others: Mapping[str, Path]) -> dict[str, str]:
    """The hashes of the code and settings of the user's that the command names, and of others, by name."""
    theirs = (word for word in command if Path(word).suffix.lower() in READ and Path(word).parent != OURS)
    named = {**others, **{word: folder / word for word in theirs if "{" not in word}}
    return {word: hashlib.sha256(file.read_bytes()).hexdigest() for word, file in named.items() if file.is_file()}


def commit(folder: Path, but: Sequence[str] = ("--untracked-files=no",)) -> str:
    """The commit of a folder, with "+" if there are changes that are not committed; "" if it has none.

    but: git's words for changes that do not count.
    """
    try:
        head, changed = (
            subprocess.run(["git", "-C", str(folder), *words], capture_output=True, timeout=SECONDS, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", *but, "."])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.decode().strip() + "+" * bool(changed)
