# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of C."""

import pytest
import torch

from blockscale.export.to_c.text import (
    Access,
    Array,
    affine,
    helpers,
    indent,
    indices,
    initializer_lines,
    loops,
    nested,
    number,
    numbers,
    strides_of,
)


def test_helpers_come_with_what_they_call():
    names = [body.partition("(int64_t x")[0].split()[-1] for body in helpers("near_codes(1, 2)")]
    assert names == ["within", "near_codes"]
    found = "\n".join(helpers("y = rounded_up(x, 3)"))
    assert found.index("floor_shift(int64_t x") < found.index("rounded_up(int64_t x")
    assert helpers("no call") == []


def test_numbers_and_lines():
    assert number(-(2**63)) == "(-9223372036854775807 - 1)" and number(-5) == "-5"
    lines = initializer_lines(torch.arange(1000))
    assert max(map(len, lines)) <= 100 and len(" ".join(lines).split(",")) == 1001


@pytest.mark.parametrize("count", [0, 1, 24, 25, 300])
def test_a_line_is_as_long_as_it_may_be(count: int):
    values = torch.arange(-count, 3 * count, 4)
    values[::7] = -(2**63)
    expected, line = [], "   "
    for value in values.tolist():  # a word after the other
        word = f" {number(value)},"
        if len(line) + len(word) > 100:
            expected.append(line)
            line = "   "
        line += word
    assert initializer_lines(values) == [*expected, line]
    assert initializer_lines(torch.tensor([True, False])) == ["    1, 0,"]


def test_loops():
    names, heads, ends = loops([3, 1, 2])
    assert names == ["i0", "0", "i2"] and len(heads) == len(ends) == 2
    assert heads[0] == "for (int32_t i0 = 0; i0 < 3; i0++) {"
    assert indent([heads[0], "x;", "}"]) == [f"    {heads[0]}", "        x;", "    }"]


# Places of elements, and what of them strides reach.


def test_places_through_moves():
    array = Array("a", "arena", torch.int8, 24, 3)
    places = torch.nn.functional.pad(array.places((2, 3, 4)).permute(2, 0, 1), (1, 0), value=-7)
    assert numbers(places)[0, 0].tolist() == [0, 3, 3, 3]
    assert indices(places)[1, 1].tolist() == [-7, 13, 17, 21]


def test_affine():
    whole = torch.arange(24).reshape(2, 3, 4)
    for each in (whole, whole.mT, whole.flip(1), whole[:, 1:, ::2], whole[:1].expand(5, 3, 4)):
        offset, strides = affine(each)
        grid = torch.meshgrid(*(torch.arange(n) for n in each.shape), indexing="ij")
        assert torch.equal(offset + sum(g * s for g, s in zip(grid, strides, strict=True)), each)
    assert affine(whole.roll(1, 2)) is None
    assert affine(torch.tensor(5)) == (5, ())


def test_access():
    array = Array("a", "arena", torch.int16, 24, 1)
    assert array.nbytes == 48 and array.ctype == "int16_t"
    whole = Access(array, 0, (2, 1, 12), strides_of((2, 1, 12)))
    assert whole.contiguous and whole.at(["i", "j", "k + 1"]) == "i * 12 + (k + 1)"
    assert Access(array, 4, (2, 1), (6, 0)).at(["0", "0"]) == "4"


def test_nested_loops():
    rows = torch.arange(12).reshape(3, 4)
    pairs = torch.stack([(rows + 2 * torch.arange(3)[:, None] + 1).flatten(), rows.flatten()], 1)
    assert nested(pairs) == ([1, 0], [3, 4], [[6, 4], [1, 1]])
    assert nested(pairs[:1]) == ([1, 0], [], [])
    assert nested(pairs[[0, 1, 2, 5, 4, 3, 7]]) is None
