# SPDX-License-Identifier: BSD-3-Clause
"""Scales that callers give: of one element, of blocks that their shape defines, of any sign."""

import pytest
import torch

import blockscale as bs
from blockscale.core import reference as R
from blockscale.core.parse import parse
from blockscale.core.reference import QParams


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("of_scale", [(), (1,), (1, 1, 1)])
def test_one_scale_serves_any_rank(shape: tuple[int, ...], of_scale: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    scale = torch.full(of_scale, 0.1)
    for fmt in ("int8", "int8:token:fp32", "int8:block2x3:fp32"):
        q = bs.quantize(x, fmt, scale=scale)
        own = fmt == "int8:token:fp32" and len(shape) == len(of_scale) == 1
        assert str(q.format) == (fmt if own else "int8:tensor:fp32")
        assert torch.equal(q.codes, (x / 0.1).round().clamp(-127, 127).to(torch.int8))
        assert torch.equal(bs.fake_quantize(x, fmt, scale=scale), q.dequantize())


def test_a_zero_point_of_one_element_goes_with_it() -> None:
    x = torch.randn(3, 4)
    q = bs.quantize(x, "uint8", torch.tensor(0.05), torch.tensor(128, dtype=torch.int32))
    assert torch.equal(q.codes, ((x / 0.05).round() + 128).clamp(0, 255).to(torch.uint8))


@pytest.mark.parametrize(
    ("counts", "block"),
    [
        ((4, 6), "group1"),
        ((2, 6), "tile2x1"),
        ((4, 1), "channel0"),
        ((1, 6), "channel1"),
        ((1, 2), "block*x3"),
        ((2, 2), "tile2x3"),
        ((4, 3), "group2"),
        ((1, 1), "tensor"),
    ],
)
def test_a_scale_that_divides_defines_its_blocks(counts: tuple[int, ...], block: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    scale = torch.rand(counts, generator=torch.Generator().manual_seed(2)) + 0.1
    q = bs.quantize(x, "int8:group5:fp32", scale=scale)
    assert str(q.format.block) == block
    rows, columns = 4 // counts[0], 6 // counts[1]
    each = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    assert torch.equal(q.codes, (x / each).round().clamp(-127, 127).to(torch.int8))


def test_the_blocks_of_the_format_come_first() -> None:
    q = bs.quantize(torch.randn(4, 6), "int8:group4:fp32", scale=torch.ones(4, 2))
    assert str(q.format.block) == "group4"  # whose last block is partial, not group3


@pytest.mark.parametrize("counts", [(3, 6), (4,), (2, 2, 2), (0, 6)])
def test_other_shapes_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"the stored scale must be float32 of shape \(4, 2\)"):
        bs.quantize(torch.randn(4, 6), "int8:group4:fp32", scale=torch.ones(counts))


@pytest.mark.parametrize("fmt", ["int8:group4:fp32", "e4m3:group4:fp16", "nf4:group4:bf16"])
@pytest.mark.parametrize("value", [-0.5, 0.0, -0.0, 1e-40, -1e-40])
def test_any_finite_scale_is_read(fmt: str, value: float) -> None:
    """Half of the scales in GGUF files are negative, some are 0 or -0."""
    form = parse(fmt)
    x = torch.tensor([[1.0, -2.0, 0.0, -0.0], [3.0, 0.25, -0.5, 9.0]])
    scale = torch.full((2, 1), value).to(form.scale.dtype)
    q = bs.quantize(x, fmt, scale=scale)
    codes = R.quantize(x, QParams(scale), form)
    assert torch.equal(q.codes, codes)
    values = form.element.decode(codes) * scale.float()
    assert torch.equal(q.dequantize().view(torch.int32), values.view(torch.int32))


def test_signed_scales_give_the_largest_value_the_lowest_code() -> None:
    """ggml's Q4_0: d = M / -8 with the sign of the value of largest magnitude."""
    x = torch.tensor([[1.0, -4.0, 2.0, 0.5], [3.0, -1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    q = bs.quantize(x, "int4:group4:fp16:signed")
    assert q.scale.flatten().tolist()[:2] == [0.5, -0.375]
    assert q.codes.tolist()[0] == [2, -8, 4, 1] and q.codes.tolist()[1][0] == -8
    assert q.codes.tolist()[2] == [0, 0, 0, 0] and float(q.scale[2]) > 0


@pytest.mark.parametrize("fmt", ["int4:group4:e8m0/given", "e2m1:group4:pow2/given"])
def test_scales_without_a_rule_are_given(fmt: str) -> None:
    x = torch.randn(2, 8)
    with pytest.raises(ValueError, match="must be supplied"):
        bs.quantize(x, fmt)
    ruled = bs.quantize(x, fmt.replace("given", "floor"))
    q = bs.quantize(x, fmt, scale=ruled.scale)
    assert torch.equal(q.packed, ruled.packed) and torch.equal(q.dequantize(), ruled.dequantize())
