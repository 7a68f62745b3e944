# SPDX-License-Identifier: BSD-3-Clause
"""Offsets: a number added to each block, stored as a float or as a code (numerics.md, 3.8)."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.core.scales.offset import Offset


def test_the_lowest_value_gets_the_lowest_code_and_the_highest_the_highest() -> None:
    x = torch.tensor([[5.0, 6.0, 7.0, 8.0], [-3.0, -3.0, -2.0, -1.5]])
    for element in ("uint2", "int2"):
        q = bs.quantize(x, f"{element}:group4:fp32:offset")
        low = {"uint2": 0, "int2": -2}[element]
        assert q.codes.tolist() == [[low, low + 1, low + 2, low + 3], [low, low, low + 2, low + 3]]
        assert torch.equal(q.dequantize(), x)  # two bits hold four steps, 0 is not among them


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_q4_1_as_ggml_stores_it(backend: str) -> None:
    """d = (max - min) / 15 and m = min, both float16; values fl(q * d) + m."""
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    with bs.use(backend):
        q = bs.quantize(x, "uint4:group32:fp16:offset")
        values = q.dequantize()
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    assert torch.equal(q.qparams.scale, ((high - low) / 15).half())
    assert q.offset is not None and torch.equal(q.offset, low.half())
    d, m = q.qparams.scale.float(), low.half().float()
    assert torch.equal(values, q.codes.float() * d + m)


def test_unsigned_offsets_are_at_most_zero_and_have_a_negative_scale() -> None:
    """GGUF's K types subtract dmin * m with m >= 0."""
    x = torch.cat([torch.rand(1, 32) + 1, -torch.rand(1, 32) - 1]).reshape(1, 64)
    q = bs.quantize(x, "uint4:group32:(uint6:group2:fp16):offset(uint6:group2:fp16)")
    offset = q.offset
    assert isinstance(offset, bs.QTensor)
    assert bool((offset.qparams.scale < 0).all())
    values = offset.dequantize()
    assert values[0, 0] == 0 and values[0, 1] < -1


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_offsets_beyond_a_type_become_its_largest(kind: str) -> None:
    largest = torch.finfo({"fp16": torch.float16, "bf16": torch.bfloat16}[kind]).max
    offset = Offset(parse(f"int4:tensor:{kind}").scale)
    stored, outer = offset.store(torch.tensor([3.4e38, -3.4e38, 1e-45]))
    assert outer is None
    assert stored.tolist() == [largest, -largest, 0.0]


def test_blocks_without_numbers_have_no_offset() -> None:
    x = torch.tensor([[float("nan")] * 4, [float("inf")] * 4])
    q = bs.quantize(x, "uint4:group4:fp32:offset")
    assert q.offset is not None and q.offset.tolist() == [[0.0], [0.0]]


def test_an_offset_that_blocks_share_is_given() -> None:
    fmt = "int4:group4:fp32:offset(tensor:fp32)"
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="is given, not chosen"):
        bs.quantize(x, fmt)
    q = bs.quantize(x, fmt, scale=torch.ones(2, 2), offset=torch.tensor(0.25))
    assert torch.equal(q.dequantize(), (x - 0.25).round().clamp(-8, 7) + 0.25)


def test_given_offsets_are_checked() -> None:
    x, scale = torch.randn(2, 8), torch.ones(2, 2)
    with pytest.raises(ValueError, match="needs an offset"):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale)
    with pytest.raises(ValueError, match="has no offset"):
        bs.quantize(x, "int4:group4:fp32", scale=scale, offset=scale)
    with pytest.raises(ValueError, match=r"the offset is float32 of shape \(2, 2\), not float16"):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale, offset=scale.half())
    with pytest.raises(ValueError, match="without the scale"):
        bs.quantize(x, "int4:group4:fp32:offset", offset=scale)
