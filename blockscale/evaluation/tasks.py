# SPDX-License-Identifier: BSD-3-Clause
"""Figures of tasks for `bs.evaluate(figures=)`: errors of words and characters, boxes found."""

from collections.abc import Sequence

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # sums and weights, float64 [rows]


def edits(found: Sequence[object], expected: Sequence[object]) -> int:
    """The least number of insertions, deletions and substitutions that make one the other.

    V. I. Levenshtein, Binary codes capable of correcting deletions, insertions, and reversals,
    1966; in the memory of one row.
    """
    row = list(range(len(expected) + 1))
    for i, mine in enumerate(found, 1):
        corner, row[0] = row[0], i
        for j, theirs in enumerate(expected, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (mine != theirs))
    return row[-1]


def word_errors(found: Sequence[str], expected: Sequence[str]) -> Pair:
    """Wrong words of each text and how many were expected: their ratio is the word error rate.

    Case and punctuation count: change both texts first if they should not.
    Raises ValueError for different numbers of texts.
    """
    return _errors([t.split() for t in found], [t.split() for t in expected])


def character_errors(found: Sequence[str], expected: Sequence[str]) -> Pair:
    """As `word_errors`, of characters."""
    return _errors([list(t) for t in found], [list(t) for t in expected])


def _errors(texts: list[list[str]], expected: list[list[str]]) -> Pair:
    if len(texts) != len(expected):
        raise ValueError(f"found {len(texts)} texts, expected {len(expected)}")
    wrong = [edits(a, b) for a, b in zip(texts, expected, strict=True)]
    counts = [len(b) for b in expected]
    return torch.tensor(wrong, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)


def box_matches(
    found: Sequence[Tensor], expected: Sequence[Tensor], overlap: float = 0.5
) -> dict[str, Pair]:
    """What share of the expected boxes is found, and what share of those found is expected.

    found, expected: for each image boxes [n, 4] as x0, y0, x1, y1, the likeliest first
    overlap: intersection over union from which on two boxes are the same

    Each found box takes the expected one that it overlaps most and nobody took (as PASCAL VOC
    counts: M. Everingham et al., 2010, section 4.2). Returns "recall" and "precision".
    Raises ValueError for different numbers of images, and boxes of another shape.
    """
    if len(found) != len(expected):
        raise ValueError(f"found boxes of {len(found)} images, expected {len(expected)}")
    for boxes in (*found, *expected):
        if boxes.dim() != 2 or boxes.shape[1] != 4:
            raise ValueError(f"boxes are [n, 4] (x0, y0, x1, y1), found {tuple(boxes.shape)}")
    hits = [_hits(a, b, overlap) for a, b in zip(found, expected, strict=True)]
    right = torch.tensor(hits, dtype=torch.float64)
    return {
        "recall": (right, torch.tensor([len(b) for b in expected], dtype=torch.float64)),
        "precision": (right, torch.tensor([len(a) for a in found], dtype=torch.float64)),
    }


def _hits(boxes: Tensor, expected: Tensor, overlap: float) -> int:
    if not len(boxes) or not len(expected):
        return 0
    ratios = _overlaps(boxes.double(), expected.double())
    hits = 0
    for row in ratios:
        best = int(row.argmax())
        if row[best] >= overlap:
            hits += 1
            ratios[:, best] = -1.0  # it is taken
    return hits


def _overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union [len(a), len(b)]."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    areas = [(x[:, 2:] - x[:, :2]).clamp(min=0).prod(-1) for x in (a, b)]
    return both / (areas[0][:, None] + areas[1][None, :] - both).clamp(min=1e-300)
