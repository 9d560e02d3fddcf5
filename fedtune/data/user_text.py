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
from fedtune.data.user_options import Options

UNKNOWN, FIRST_TOKEN = 1, 2
VOCABULARY = 4096  # as many numbers as the built-in model has embeddings
LONGEST = 1000  # tokens of a row, unless it is said
WORD = re.compile(r"\w+|[^\w\s]")


def tokens(source: str, texts: Sequence[str], options: Options, split: np.ndarray | None) -> tuple[np.ndarray, str]:
    """Tokens [rows, length], and a note.

    options: text says what a token is: words, in lower case, with each sign a word of its own, or characters; at
    `length` rows are cut, or else all are as long as the longest.  split: the vocabulary is made from training rows.
    UserError unless it is said what a token is.
    """
    unit = options.text
    if not unit:
        raise UserError(
            f"x of {source} is text, like {shown(texts[0])}: give text='words' or text='characters' in brackets after "
            "its name for what a token is"
        )
    tokenised = [WORD.findall(text.lower()) if unit == "words" else list(text) for text in texts]
    trained = np.ones(len(texts), bool) if split is None else split == 0
    frequencies = Counter(t for row, counts in zip(tokenised, trained, strict=True) if counts for t in row)
    ranked = sorted(frequencies, key=lambda t: (-frequencies[t], t))[: VOCABULARY - FIRST_TOKEN]
    number = {t: FIRST_TOKEN + i for i, t in enumerate(ranked)}
    longest = max(map(len, tokenised))
    if not longest or (not options.length and longest > LONGEST):
        raise UserError(
            f"rows of {source} need 1 to {LONGEST:,} {unit}, but the longest has {longest:,}; give another column, or "
            "length=200 or another number, at which rows are cut"
        )
    length = options.length or longest
    rows = np.zeros((len(tokenised), length), np.int64)
    for place, row in zip(rows, tokenised, strict=True):
        numbers = [number.get(t, UNKNOWN) for t in row[:length]]
        place[: len(numbers)] = numbers
    shorter = sum(len(row) > length for row in tokenised)
    unknown = len(frequencies) - len(ranked)
    from_rows = "all rows" if split is None else "training rows"
    note = f"x of {source} is text in tokens: {several(len(ranked), unit[:-1])} numbered by frequency in {from_rows}"
    note += f", {several(unknown, 'rarer one')} numbered {UNKNOWN}" if unknown else ""
    return rows, note + (f"; {several(shorter, 'row')} cut to {length}" if shorter else "")
