# SPDX-License-Identifier: BSD-3-Clause
"""Offsets: a number added to each block, stored as a float or as a code (numerics.md, 3.8)."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.core import reference as R
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import Offset, TwoLevel


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
    with pytest.raises(ValueError, match="must be supplied"):
        bs.quantize(x, fmt)
    q = bs.quantize(x, fmt, scale=torch.ones(2, 2), offset=torch.tensor(0.25))
    assert torch.equal(q.dequantize(), (x - 0.25).round().clamp(-8, 7) + 0.25)


def test_given_offsets_are_checked() -> None:
    x, scale = torch.randn(2, 8), torch.ones(2, 2)
    with pytest.raises(ValueError, match="needs an offset"):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale)
    with pytest.raises(ValueError, match="has no offset"):
        bs.quantize(x, "int4:group4:fp32", scale=scale, offset=scale)
    with pytest.raises(
        ValueError, match=r"the offset must be float32 of shape \(2, 2\), found float16"
    ):
        bs.quantize(x, "int4:group4:fp32:offset", scale=scale, offset=scale.half())
    with pytest.raises(ValueError, match="without its scale"):
        bs.quantize(x, "int4:group4:fp32:offset", offset=scale)


# Scales of two levels beyond NVFP4's: other outer types, reciprocals, signs, zeros, offsets.


def scale_of(text: str) -> TwoLevel:
    scale = parse(f"int4:group4:{text}").scale
    assert isinstance(scale, TwoLevel)
    return scale


def test_a_step_keeps_its_sign_and_is_zero_only_where_a_factor_is() -> None:
    scale = scale_of("(int8:tensor:fp32)")
    codes = torch.tensor([[1, 255, 0, 127]], dtype=torch.uint8)  # 255 is -1
    tiny = scale.step(codes, torch.tensor([[2.0**-149]]))
    assert tiny.tolist() == [[2.0**-149, -(2.0**-149), 0.0, 127 * 2.0**-149]]
    small = scale_of("e4m3").step(torch.tensor([[1, 129, 0]]).byte(), torch.tensor([[2.0**-149]]))
    assert small.tolist() == [[2.0**-149, -(2.0**-149), 0.0]]  # underflow is no zero
    assert scale.step(codes, torch.zeros(1, 1)).tolist() == [[0.0, -0.0, 0.0, 0.0]]
    large = scale.step(codes, torch.tensor([[-3e38]]))
    assert large[0, 3] == -torch.finfo(torch.float32).max


def test_a_reciprocal_divides_as_compressed_tensors_does() -> None:
    """fl(c / G) is not fl(c * fl(1 / G)) for a fifth of ordinary numbers: the direction is kept."""
    generator = torch.Generator().manual_seed(0)
    outer = torch.rand(4096, 1, generator=generator) * 1000 + 1
    codes = torch.randint(1, 127, (4096, 1), generator=generator).to(torch.uint8)
    fmt = parse("e2m1:group16:(e4m3:group1@0:fp32)/inv")
    assert isinstance(fmt.scale, TwoLevel)
    values = fmt.scale.values(codes)
    steps = fmt.scale.step(codes, outer)
    exact = (
        values.double() / outer.double()
    ).float()  # a double quotient rounds once more, rightly
    assert torch.equal(steps, exact)
    assert 0.1 < float((steps != values * outer.reciprocal()).float().mean()) < 0.4


def test_the_scale_chosen_for_a_reciprocal_is_that_of_nvfp4_files() -> None:
    """compressed-tensors: G = 448 * 6 / amax, block scales e4m3(amax / 6 * G)."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    q = bs.quantize(x, "e2m1:group16:e4m3/inv")
    amax = x.view(4, 4, 16).abs().amax(-1)
    outer = torch.tensor(2688.0) / x.abs().max()
    assert torch.equal(q.qparams.outer, outer.reshape(1, 1))
    wanted = (amax / 6 * outer).to(torch.float8_e4m3fn)
    assert torch.equal(q.qparams.scale.view(torch.float8_e4m3fn).float(), wanted.float())


@pytest.mark.parametrize("outer", ["fp16", "bf16"])
def test_outer_scales_of_other_types_are_stored_in_them(outer: str) -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
    q = bs.quantize(x, f"int6:group16:(int8:group4:{outer})")
    assert q.qparams.outer is not None
    assert q.qparams.outer.dtype == {"fp16": torch.float16, "bf16": torch.bfloat16}[outer]
    numerators = x.view(2, 4, 16).abs().amax(-1)
    expected = (numerators.amax(-1, keepdim=True) / (31.0 * 127.0)).to(q.qparams.outer.dtype)
    assert torch.equal(q.qparams.outer, expected)


def test_an_offset_of_scales_is_added_to_their_steps() -> None:
    """bitsandbytes' double quantization: absmax = map[u] * nested_absmax + nested_offset."""
    fmt = parse("nf4:group4:(book(-1,-0.5,0,0.5,1):group2:fp32:offset(tensor:fp32))")
    codes = torch.tensor([[0, 1, 3, 4]], dtype=torch.uint8)
    parts = QParams(codes, torch.tensor([[0.5, 2.0]]), scale_offset=torch.tensor([[3.0]]))
    assert R.step_of(parts, fmt).tolist() == [[2.5, 2.75, 4.0, 5.0]]
    with pytest.raises(ValueError, match="offset of its scales must be supplied"):
        bs.quantize(torch.ones(1, 16), fmt)


def test_the_scale_of_a_tensor_reads_back_as_a_tensor_of_its_own() -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
    q = bs.quantize(x, "int6:group16:(int8:group4:fp16)")
    scale = q.scale
    assert isinstance(scale, bs.QTensor)
    assert scale.shape == (2, 4) and str(scale.format) == "int8:group4:fp16"
    assert torch.equal(scale.dequantize(), R.step_of(q.qparams, q.format))
    again = bs.quantize(x, q.format, scale=scale)
    assert torch.equal(again.packed, q.packed)
    assert not math.isnan(float(again.dequantize().sum()))
