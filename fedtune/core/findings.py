"""What `fedtune check` finds of an algorithm, a model or a program: a line each, and how it came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedtune.core.terminal import several

Status = Literal["passed", "advice", "failed", "skipped"]  # failed: a search would be wrong


class Finding(NamedTuple):
    """What was found about one question, and what to do."""

    status: Status
    name: str
    says: str

    def __str__(self) -> str:
        """As a line; where a program failed, its last output is below."""
        word = self.status.upper() if self.status == "failed" else self.status
        return f"{word:7}  {self.name:15}  {self.says}"


def summary(findings: Sequence[Finding]) -> str:
    """How many checks pass."""
    count = Counter(finding.status for finding in findings)
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    more = skipped + (f", {several(count['advice'], 'line')} of advice" if count["advice"] else "")
    if not count["failed"]:
        return f"{'' if skipped else 'all '}{several(count['passed'], 'check')} passed{more}"
    return f"{count['failed']} of {len(findings)} checks failed, {count['passed']} passed{more}"
