# SPDX-License-Identifier: BSD-3-Clause
"""A tensor split into blocks and joined again is the tensor; free sizes stay free."""

import pytest
import torch

from blockscale.core.block import read_block
from blockscale.export.to_onnx.split import refused, split
from tests.export.to_onnx.running import run

CASES = [
    ("tensor", (None, None)),
    ("token", (None, 10)),
    ("group4", (None, 10)),
    ("group5", (None, None, 10)),
    ("tile2x4", (None, 6, 10)),
    ("group3@1", (None, 7, None)),
    ("group3@-2", (None, 7, 10)),
    ("channel1", (None, None, 10)),
]


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_there_and_back(name, sizes):
    block, x = read_block(name), torch.randn([3 if n is None else n for n in sizes])
    assert refused(block, sizes) is None

    def build(scope, names):
        parts = split(scope, names[0], block, sizes)
        return parts.joined(scope, parts.x)

    assert torch.equal(run(build, x), x)


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_one_number_a_block(name, sizes):
    block, x = read_block(name), torch.rand([3 if n is None else n for n in sizes])

    def build(scope, names):
        parts = split(scope, names[0], block, sizes)
        return scope.op("ReduceMax", parts.x, scope.ints(*parts.axes), keepdims=1)

    stored = block.scale_shape(x.shape)
    expected = torch.zeros(stored)
    every = block.expand(torch.arange(expected.numel()).reshape(stored), x.shape).expand(x.shape)
    expected = expected.flatten().scatter_reduce(0, every.flatten(), x.flatten(), "amax")
    assert torch.equal(run(build, x).flatten(), expected)


def test_what_cannot_be_split():
    assert "flat8 run over the flattened tensor" in refused(read_block("flat8"), (4, 4))
    assert "whose size is dynamic: make" in refused(read_block("group8"), (4, None))
    assert "more than one size after" in refused(read_block("group2@0"), (4, None, None))
