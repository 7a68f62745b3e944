# SPDX-License-Identifier: BSD-3-Clause
"""K types as encoders: blocks do not influence one another. Bytes: producers/test_gguf.py."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.encoders.super_blocks import SUPER

NAMES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


@pytest.mark.parametrize("name", NAMES)
def test_a_super_block_is_encoded_by_itself(name: str) -> None:
    x = torch.randn(3, 2 * SUPER)
    profile = bs.profile(f"gguf.{name}")
    whole, alone = bs.quantize(x, profile), bs.quantize(x[1:2, SUPER:], profile)
    assert torch.equal(whole.codes[1:2, SUPER:], alone.codes)
    each = alone.qparams.scale.shape[-1]
    assert torch.equal(whole.qparams.scale[1:2, each:], alone.qparams.scale)
    assert torch.equal(whole.qparams.outer[1:2, 1:], alone.qparams.outer)


@pytest.mark.parametrize("name", NAMES)
def test_zeros(name: str) -> None:
    q = bs.quantize(torch.zeros(1, SUPER), bs.profile(f"gguf.{name}"))
    assert not q.dequantize().any()
    assert q.qparams.outer.item() == 0.0


def test_more_bits_are_nearer() -> None:
    x = torch.randn(8, SUPER)
    errors = [
        float((bs.quantize(x, bs.profile(f"gguf.{name}")).dequantize() - x).norm())
        for name in NAMES
    ]
    assert errors == sorted(errors, reverse=True)
