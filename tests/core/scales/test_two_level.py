# SPDX-License-Identifier: BSD-3-Clause
"""Scales of two levels beyond NVFP4's: other outer types, reciprocals, signs, zeros, offsets."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.core import reference as R
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel


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
    with pytest.raises(ValueError, match="offset of its scales is given, not chosen"):
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
