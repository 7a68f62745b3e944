# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of blocks spread by onnxruntime lie where the reference spreads them."""

import pytest
import torch

from blockscale.core.block import read_block
from blockscale.export.to_onnx.blocks import expand, repeated
from blockscale.export.to_onnx.stored import put_tensor
from tests.export.to_onnx.running import run

BLOCKS = [
    *("tensor", "channel0", "channel1", "channel-1", "token", "group4", "group5", "group64"),
    *("group3@0", "tile2x4", "tile4x5", "block3x*", "block2x2x4", "flat6", "flat7", "flat12@0"),
]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(6, 10), (3, 4, 10)])
def test_spread_as_the_reference_does(name, shape):
    block = read_block(name)
    if name.startswith("block2x2") and len(shape) < 3:
        pytest.skip("needs three dimensions")
    stored = block.scale_shape(shape)
    parts = torch.arange(1.0, 1 + torch.Size(stored).numel()).reshape(stored)

    def build(scope, names):
        given = put_tensor(scope.file, "parts", parts)
        return expand(scope, given, block, tuple(stored), shape)

    expected = block.expand(parts, torch.Size(shape)).expand(shape)
    assert torch.equal(run(build).expand(shape), expected)


def test_a_partial_last_block():
    parts = torch.tensor([[1.0, 2.0, 3.0]])
    found = run(lambda scope, names: repeated(scope, names[0], 1, 8, 3), parts)
    assert found.tolist() == [[1, 1, 1, 2, 2, 2, 3, 3]]
