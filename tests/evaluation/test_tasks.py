# SPDX-License-Identifier: BSD-3-Clause
"""Errors of words and characters, and boxes: by hand and by brute force."""

import itertools

import pytest
import torch

from blockscale.evaluation.tasks import box_matches, character_errors, edits, word_errors


@pytest.mark.parametrize(
    ("found", "expected", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("abc", "abc", 0),
    ],
)
def test_known_distances(found, expected, distance):
    assert edits(found, expected) == distance


def slowly(a, b):
    """By the definition, every way."""
    if not a or not b:
        return len(a) + len(b)
    return min(slowly(a[1:], b) + 1, slowly(a, b[1:]) + 1, slowly(a[1:], b[1:]) + (a[0] != b[0]))


def test_all_short_texts():
    texts = ["".join(t) for n in range(4) for t in itertools.product("ab", repeat=n)]
    assert all(edits(a, b) == slowly(a, b) for a in texts for b in texts)


def test_word_and_character_errors():
    sums, weights = word_errors(["a cat sat", "", "x"], ["the cat sat", "one two", "x"])
    assert sums.tolist() == [1.0, 2.0, 0.0] and weights.tolist() == [3.0, 2.0, 1.0]
    sums, weights = character_errors(["abd"], ["abc"])
    assert sums.tolist() == [1.0] and weights.tolist() == [3.0]
    with pytest.raises(ValueError, match="found 1 texts, expected 2"):
        word_errors(["a"], ["a", "b"])


def test_boxes_are_taken_once():
    expected = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    found = torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 10], [50, 50, 60, 60]])
    parts = box_matches([found, torch.zeros(0, 4)], [expected, expected])
    assert [t.tolist() for t in parts["recall"]] == [[1.0, 0.0], [2.0, 2.0]]
    assert [t.tolist() for t in parts["precision"]] == [[1.0, 0.0], [3.0, 0.0]]


@pytest.mark.parametrize(("overlap", "hits"), [(0.81, 0.0), (0.80, 1.0)])
def test_the_overlap_that_counts(overlap, hits):
    a, b = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[0.0, 0, 10, 8]])
    assert box_matches([a], [b], overlap)["recall"][0].tolist() == [hits]


def test_wrong_boxes_are_refused():
    with pytest.raises(ValueError, match=r"boxes are \[n, 4\]"):
        box_matches([torch.zeros(2, 5)], [torch.zeros(2, 4)])
    with pytest.raises(ValueError, match="boxes of 1 images, expected 2"):
        box_matches([torch.zeros(2, 4)], [torch.zeros(2, 4)] * 2)
