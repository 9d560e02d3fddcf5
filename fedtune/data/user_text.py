"""Texts as tokens: words or characters, numbered by how often they occur in training rows.

0 pads; 1 is a token outside the vocabulary, which holds the most frequent ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedtune.core.errors import UserError, shown
from fedtune.core.terminal import several
from fedtune.data.user_options import CHARACTERS, WORDS

PADDING, UNKNOWN, FIRST = 0, 1, 2
VOCABULARY = 4096  # as many numbers as the built-in model has embeddings
LONGEST = 1000  # tokens of a row, unless it is said
WORD = re.compile(r"\w+|[^\w\s]")


def tokens(
    source: str, texts: Sequence[str], of: str, length: int, trained: np.ndarray | None
) -> tuple[np.ndarray, str]:
    """Tokens [rows, length], and a note.

    of: words, in lower case, with each sign a word of its own; or characters.  length: longer rows are cut; 0: that of
    the longest row.  trained: the rows that the vocabulary is made from; None: all.
    UserError unless it is said what a token is.
    """
    if not of:
        example = shown(texts[0])
        raise UserError(
            f"x of {source} is text, like {example}: give text='{WORDS}' or text='{CHARACTERS}' in brackets after its "
            "name for what a token is"
        )
    cut = [WORD.findall(text.lower()) if of == WORDS else list(text) for text in texts]
    counted = Counter(t for i, row in enumerate(cut) if trained is None or trained[i] for t in row)
    ranked = sorted(counted, key=lambda t: (-counted[t], t))[: VOCABULARY - FIRST]
    number = {t: FIRST + i for i, t in enumerate(ranked)}
    longest = max(map(len, cut))
    if not longest:
        raise UserError(f"x of {source} has no {of}, because all texts are empty; give another column")
    if not length and longest > LONGEST:
        raise UserError(
            f"a row of {source} has {longest:,} {of}; give length=200, or another number, at which rows are cut"
        )
    rows = np.zeros((len(cut), length or longest), np.int64)
    for place, row in zip(rows, cut, strict=True):
        found = [number.get(t, UNKNOWN) for t in row[: len(place)]]
        place[: len(found)] = found
    shorter = sum(len(row) > rows.shape[1] for row in cut)
    unknown = len(counted) - len(ranked)
    from_rows = "all rows" if trained is None else "training rows"
    note = f"x of {source} is text in tokens: {several(len(ranked), of[:-1])} numbered by frequency in {from_rows}"
    note += f", {several(unknown, 'rarer one')} numbered {UNKNOWN}" if unknown else ""
    return rows, note + (f"; {several(shorter, 'row')} cut to {length}" if shorter else "")
