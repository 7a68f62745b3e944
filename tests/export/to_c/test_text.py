# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of C."""

import torch

from blockscale.export.to_c.text import helpers, indented, listed, loops, number


def test_helpers_come_with_what_they_call():
    names = [body.partition("(int64_t x")[0].split()[-1] for body in helpers("near_codes(1, 2)")]
    assert names == ["within", "near_codes"]
    found = "\n".join(helpers("y = rounded_up(x, 3)"))
    assert found.index("floor_shift(int64_t x") < found.index("rounded_up(int64_t x")
    assert helpers("no call") == []


def test_numbers_and_lines():
    assert number(-(2**63)) == "(-9223372036854775807 - 1)" and number(-5) == "-5"
    lines = listed(torch.arange(1000))
    assert max(map(len, lines)) <= 100 and len(" ".join(lines).split(",")) == 1001


def test_loops():
    names, heads, ends = loops([3, 1, 2])
    assert names == ["i0", "0", "i2"] and len(heads) == len(ends) == 2
    assert heads[0] == "for (int32_t i0 = 0; i0 < 3; i0++) {"
    assert indented([heads[0], "x;", "}"]) == [f"    {heads[0]}", "        x;", "    }"]
