# SPDX-License-Identifier: BSD-3-Clause
"""How sums end, and moves, against the graph's own codes."""

import pytest
import torch

from blockscale.export.to_c.writer import kind_of, less
from tests.support.c_handmade import handmade
from tests.support.c_running import check, needs_gcc
from tests.support.integer_oracle import INT8, whole

aten = torch.ops.aten
WIDE = [*range(-70, 71), 2**45 + 2**21, -(2**45), 2**62 - 1, 3 * 2**40 + 2**17, -(2**62)]


def ends(x, roundings):
    for rounding in roundings:
        fmt = INT8 + ("" if rounding == "nearest_even" else f":{rounding}")
        for shift in (-62, -31, -5, 0, 1, 5, 24, 31, 62):
            at = torch.tensor([shift], dtype=torch.int32)
            yield "rescale", [x, 0, at, 3, -100, 127, fmt]
    yield "rescale", [x, 0, torch.tensor([0], dtype=torch.int32), 0, -9, 30, ""]


@needs_gcc
@pytest.mark.slow
def test_all_roundings_and_shifts(tmp_path):
    roundings = ("nearest_even", "nearest_away", "toward_zero", "down", "up")
    small = torch.tensor([*range(-70, 71), 2**31 - 1, -(2**31) + 1, 2**30], dtype=torch.int32)
    wide = torch.tensor(WIDE)
    for x in (small, wide):
        check(handmade({"x": x}, list(ends("x", roundings))), tmp_path, (x,))


@needs_gcc
@pytest.mark.slow
def test_moves(tmp_path):
    x, y = whole(-128, 127, 2, 6, 4, dtype=torch.int8), whole(0, 1, 2, 6, 4, dtype=torch.int8)
    calls = [
        (aten.permute.default, ["x", [2, 0, 1]]),
        (aten.cat.default, [["x", "y", "x"], 1]),
        (aten.constant_pad_nd.default, ["x", [1, 2, 0, 1], -7]),
        (aten.constant_pad_nd.default, ["x", [0, 0, 0, 0, 1, 0], -7]),
        (aten.constant_pad_nd.default, ["@2", [1, 0], 5]),
        (aten.flip.default, ["x", [1]]),
        (aten.roll.default, ["x", [2], [1]]),
        (aten.slice.Tensor, ["x", 1, 1, 6, 2]),
        (aten.stack.default, [["y", "x"], -1]),
        (aten.permute.default, ["@1", [1, 2, 0]]),
        (aten.reshape.default, ["@9", [-1]]),
        (aten.expand.default, ["@7", [2, 3, 4]]),
        (aten.index_select.default, ["x", 1, torch.tensor([5, 0, 0])]),
    ]
    check(handmade({"x": x, "y": y}, calls), tmp_path, (x, y))


def test_types_of_sums():
    assert (kind_of(2**31 - 1), kind_of(2**31)) == ("int32_t", "int64_t")
    assert (less("x", 0, "int32_t"), less("x", 3, "int64_t")) == ("(int32_t)x", "((int64_t)x - 3)")
