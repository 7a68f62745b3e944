# SPDX-License-Identifier: BSD-3-Clause
"""Merges of byte-pair encodings: their order, and where llama.cpp merges otherwise.

llama.cpp's "llama" (src/llama-vocab.cpp, b11434: `llm_tokenizer_spm_session`) has no merges: it
joins the two neighbours that spell the token of the highest score, as SentencePiece does.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Pair = tuple[str, str]


def merges_of(found: Any) -> list[Pair]:
    """`merges` of a tokenizer.json, texts or pairs. Raises ValueError for anything else."""
    pairs = []
    for each in found if isinstance(found, list) else ():
        parts = each.split(" ") if isinstance(each, str) else each
        if (
            not isinstance(parts, list)
            or len(parts) != 2
            or not all(isinstance(p, str) for p in parts)
        ):
            raise ValueError(f"tokenizer.json: a merge is {each!r}, expected two strings")
        pairs.append((parts[0], parts[1]))
    return pairs


def order_of(pairs: Sequence[Pair]) -> dict[str, float]:
    """{token: its score}: the sooner it is merged, the higher."""
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(pairs):
        scores.setdefault(left + right, -float(rank))
    return scores


def joined_besides(vocab: Iterable[str], pairs: Sequence[Pair]) -> int:
    """How many pairs of tokens spell another one and are no merge."""
    merges = set(pairs)
    made = {left + right for left, right in pairs}
    reached = made | {text for text in vocab if len(text) == 1}
    return sum(
        (text[:i], text[i:]) not in merges
        for text in made
        for i in range(1, len(text))
        if text[:i] in reached and text[i:] in reached
    )


def whole_words_differ(vocab: Iterable[str], pairs: Sequence[Pair]) -> bool:
    """Whether a token's own text is merged to anything but that token."""
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
    return any(len(text) > 1 and not _whole(text, ranks) for text in vocab)


def _whole(text: str, ranks: Mapping[Pair, int]) -> bool:
    """Whether the merges make one token of a text."""
    parts = list(text)
    while len(parts) > 1:
        best = min((ranks[pair] for pair in pairwise(parts) if pair in ranks), default=None)
        if best is None:
            return False
        i, joined = 0, []
        while i < len(parts):
            if i + 1 < len(parts) and ranks.get((parts[i], parts[i + 1])) == best:
                joined.append(parts[i] + parts[i + 1])
                i += 2
            else:
                joined.append(parts[i])
                i += 1
        parts = joined
    return True
