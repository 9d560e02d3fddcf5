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

PADDING, UNKNOWN, FIRST_TOKEN = 0, 1, 2
VOCABULARY = 4096  # as many numbers as the built-in model has embeddings
LONGEST = 1000  # tokens of a row, unless it is said
WORD = re.compile(r"\w+|[^\w\s]")


def tokens(
    source: str, texts: Sequence[str], unit: str, length: int, trained: np.ndarray | None
) -> tuple[np.ndarray, str]:
    """Tokens [rows, length], and a note.

    of: words, in lower case, with each sign a word of its own; or characters.  length: longer rows are cut; 0: that of
    the longest row.  trained: the rows that the vocabulary is made from; None: all.
    UserError unless it is said what a token is.
    """
    if not unit:
        example = shown(texts[0])
        raise UserError(
            f"x of {source} is text, like {example}: give text='{WORDS}' or text='{CHARACTERS}' in brackets after its "
            "name for what a token is"
        )
    tokenised = [WORD.findall(text.lower()) if unit == WORDS else list(text) for text in texts]
    frequencies = Counter(t for i, row in enumerate(tokenised) if trained is None or trained[i] for t in row)
    ranked = sorted(frequencies, key=lambda t: (-frequencies[t], t))[: VOCABULARY - FIRST_TOKEN]
    number = {t: FIRST_TOKEN + i for i, t in enumerate(ranked)}
    longest = max(map(len, tokenised))
    if not longest:
        raise UserError(f"x of {source} has no {unit}, because all texts are empty; give another column")
    if not length and longest > LONGEST:
        raise UserError(
            f"a row of {source} has {longest:,} {unit}; give length=200, or another number, at which rows are cut"
        )
    rows = np.zeros((len(tokenised), length or longest), np.int64)
    for place, row in zip(rows, tokenised, strict=True):
        numbers = [number.get(t, UNKNOWN) for t in row[: len(place)]]
        place[: len(numbers)] = numbers
    shorter = sum(len(row) > rows.shape[1] for row in tokenised)
    unknown = len(frequencies) - len(ranked)
    from_rows = "all rows" if trained is None else "training rows"
    note = f"x of {source} is text in tokens: {several(len(ranked), unit[:-1])} numbered by frequency in {from_rows}"
    note += f", {several(unknown, 'rarer one')} numbered {UNKNOWN}" if unknown else ""
    return rows, note + (f"; {several(shorter, 'row')} cut to {length}" if shorter else "")
