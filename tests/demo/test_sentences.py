# SPDX-License-Identifier: BSD-3-Clause
"""Sentences that are enough for a rank correlation."""

from blockscale.demo.sentences import SENTENCES


def test_they_differ():
    assert len(SENTENCES) == 48 == len(set(SENTENCES))  # README: 1128 pairs
    assert all(each.endswith(".") and each.isascii() for each in SENTENCES)
