# SPDX-License-Identifier: BSD-3-Clause
"""Streams of bits, and parts put together."""

import numpy as np
import pytest
import torch

from blockscale.export.checkpoints import words
from tests.export.checkpoints.packing import stream


@pytest.mark.parametrize("bits", range(1, 9))
def test_streams(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (64, 5))
    rows = stream(codes, bits).T
    assert torch.equal(words.fields(rows, bits), torch.from_numpy(codes.T.astype(np.uint8)))
    assert words.fields(rows, bits, 7).tolist() == codes.T[:, :7].tolist()
    spelling = f"uint{bits}:tensor:fp32"
    stored = words.as_codes(rows, spelling)
    assert torch.equal(stored, words.packed(torch.from_numpy(codes.T.astype(np.uint8)), spelling))


@pytest.mark.parametrize("order", [(0, 2, 4, 6, 1, 3, 5, 7), tuple(range(8))])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (8, 1), (24, 5), (130, 40), (4100, 80)])
def test_words_turned_are_codes_taken_apart_and_put_together(shape, order):
    """Against numpy, one code an element; 4100 rows are more than one slab."""
    drawn = np.random.default_rng(shape[0]).integers(-(2**31), 2**31, shape).astype(np.int32)
    nibbles = drawn.view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    codes = nibbles[:, :, np.argsort(order)].reshape(shape[0], -1).T.astype(np.uint8)
    codes = np.pad(codes, ((0, 0), (0, shape[0] % 2)))
    expected = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
    found = words.turned(torch.from_numpy(drawn), order)
    assert found.is_contiguous() and torch.equal(found, expected)
    assert torch.equal(words.turned_back(found, order, shape[0]), torch.from_numpy(drawn))


def test_quantized():
    parts = {"codes": torch.zeros(4, 8, dtype=torch.uint8), "scale": torch.ones(8)}
    q = words.quantized("uint4:group8:fp32", (4, 16), parts)
    assert q.scale.shape == (4, 2) and tuple(q.shape) == (4, 16)
    for part, told in (
        (
            {"scale": torch.ones(7)},
            r"7 numbers of float32, expected 8 of float32 \(uint4:group8:fp32 of shape",
        ),
        ({"scale": torch.ones(8).half()}, "its scale has 8 numbers of float16"),
        ({"codes": torch.zeros(4, 7, dtype=torch.uint8)}, "its codes take 28 bytes"),
    ):
        with pytest.raises(ValueError, match=told):
            words.quantized("uint4:group8:fp32", (4, 16), parts | part)


def test_scales_and_groups():
    assert words.scale_type(torch.bfloat16) == "bf16"
    with pytest.raises(ValueError, match=r"its scales are torch.float64, expected float32"):
        words.scale_type(torch.float64)
    assert (words.groups(32, 64), words.groups(64, 64)) == ("group32", "channel0")
