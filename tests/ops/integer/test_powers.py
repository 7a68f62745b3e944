# SPDX-License-Identifier: BSD-3-Clause
"""Numbers as sums of signed powers of two, of the fewest there are."""

import torch

from blockscale.ops.integer.powers import digits, terms

EVERY = torch.arange(-(2**15), 2**15)


def test_digits_add_up_to_every_number_of_16_bits():
    found = digits(EVERY)
    assert torch.equal(sum(digit.to(torch.int64) << shift for digit, shift in found), EVERY)
    assert all(set(digit.unique().tolist()) <= {-1, 0, 1} for digit, _ in found)


def fewest(top):
    """{number up to top: the fewest signed powers of two that add up to it}, by search."""
    powers = [s << k for k in range(top.bit_length() + 1) for s in (1, -1)]
    known, edge = {0: 0}, {0}
    while len([n for n in known if 0 <= n <= top]) <= top:
        edge = {n + p for n in edge for p in powers if abs(n + p) <= 2 * top} - known.keys()
        known |= dict.fromkeys(edge, max(known.values()) + 1)
    return known


def test_no_sum_has_fewer_terms():
    known = fewest(256)
    assert terms(torch.arange(257)).tolist() == [known[n] for n in range(257)]
    assert torch.equal(terms(-EVERY), terms(EVERY))
