# SPDX-License-Identifier: BSD-3-Clause
"""Blocks of a weight, one by itself, a part of the weight at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.algorithms import block_scales
from blockscale.calibration.algorithms.block_scales import best_scales, nearest_scale
from blockscale.core import reference
from blockscale.core.block import Blocks, read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from tests.support import strategies


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt", ["int4:group8:fp32", "mxfp4", "int4:group8@0:fp32", "int4:channel1:fp32"]
)
def test_pieces_change_nothing(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, form, weights = torch.randn(37, 50), bs.parse(fmt), torch.rand(50, dtype=torch.float64)
    whole = best_scales(x, form, weights)
    monkeypatch.setattr(block_scales, "_PART", 64)
    parts = best_scales(x, form, weights)
    assert torch.equal(whole.scale, parts.scale)


@pytest.mark.parametrize(
    "block", ["tensor", "token", "channel0", "channel1", "group5", "group4@0", "tile3x4"]
)
def test_block_sums(block: str) -> None:
    x = torch.randn(7, 11).abs()
    form = bs.parse(f"int4:{block}:fp32")
    count = block_scales.block_sums(torch.ones_like(x), form.block)
    mean = block_scales.block_sums(x, form.block) / count
    assert count.sum() == 77
    torch.testing.assert_close(mean, Blocks(x, form.block).mean_magnitude())


# Beside the outer scale that the reference chooses, a block gets the reference's own bits.

FORMATS = [
    "nvfp4", "uint4:group8:e4m3:asym", "int4:group8:(uint8:token:fp32)", "int4:group8:e5m2:full",
    "e2m1:group8:(e4m3:group2@0:fp32)", "uint2:tile2x4:(e4m3:group3:fp32):asym", "mxfp4",
    "ternary:group8:e4m3", "int8:group8:fp32", "uint4:group8:fp16:asym", "binary:token:bf16",
    "uint8:group8:e8m0/floor:asym",
]  # fmt: skip
ODD = {
    "nan": torch.nan,
    "infinity": torch.inf,
    "minus infinity": -torch.inf,
    "largest": torch.finfo(torch.float32).max,
    "smallest": -(2.0**-149),
}


def each_block(fmt: Format, qparams: QParams, shape: torch.Size) -> tuple[Format, QParams]:
    """The same with an outer scale for each block, as a search for one block after another has."""
    if qparams.outer is None or not isinstance(fmt.scale, TwoLevel):
        return fmt, qparams
    inner = fmt.scale.inner
    outer = inner.block.expand(qparams.outer, shape).expand(shape).contiguous()
    single = replace(
        fmt, scale=replace(fmt.scale, inner=replace(inner, block=read_block("group1")))
    )
    return single, qparams._replace(outer=outer)


def same(a: QParams, b: QParams) -> bool:
    """Bit for bit, NaN included."""
    return all(
        x is y is None or (x.dtype == y.dtype and torch.equal(x.nan_to_num(-1), y.nan_to_num(-1)))
        for x, y in zip(a, b, strict=True)
    )


def check(x: torch.Tensor, fmt: Format) -> None:
    chosen, ranges = reference.choose_qparams(x, fmt), reference.ranges(x, fmt)
    assert same(reference.qparams_from_range(*ranges, fmt, chosen.outer), chosen)
    single, wanted = each_block(fmt, chosen, chosen.scale.shape)
    assert same(reference.qparams_from_range(*ranges, single, wanted.outer), wanted)


@pytest.mark.some(4)
@pytest.mark.parametrize("odd", [*ODD, "zero block", "zeros", "nothing but nan"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_reference_is_the_oracle(name: str, odd: str) -> None:
    x, fmt = torch.randn(6, 20), bs.parse(name)
    if odd in ODD:
        x[1, 3] = ODD[odd]
    elif odd == "zero block":
        x[2:4, 8:16] = 0.0
    else:
        x[:] = 0.0 if odd == "zeros" else torch.nan
    check(x, fmt)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60)
def test_any_format_and_awkward_numbers(data: st.DataObject) -> None:
    fmt = bs.parse(data.draw(strategies.spellings(2)))
    x = torch.randn(5, 7) * 10.0 ** data.draw(st.integers(-45, 38))
    x[data.draw(st.integers(0, 4))] = data.draw(st.sampled_from([0.0, torch.nan, torch.inf, -1.0]))
    check(x, fmt)


def test_a_poisoned_block_has_a_zero_point() -> None:
    """Its step is NaN, which no integer can be: the reference says 0, within the codes."""
    fmt, step = bs.parse("int4:group4:e4m3:asym"), torch.tensor([torch.nan, 1.0, torch.inf])
    low = torch.tensor([-3.0, -3.0, -3.0])
    assert reference.choose_zero_point(low, step, fmt).tolist() == [0, -5, -8]
    x = torch.tensor([[torch.nan, 1.0, 2.0, 3.0, -1.0, 0.0, 1.0, 2.0]])
    ranges, outer = reference.ranges(x, fmt), torch.tensor([[0.01]])
    found = reference.qparams_from_range(*ranges, fmt, outer)
    assert found.zero_point is not None and found.zero_point[0, 0] == 0
    assert reference.step_of(found, fmt).isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_step_is_its_own_nearest(name: str) -> None:
    x, fmt = torch.randn(6, 24) * torch.logspace(-2, 2, 6)[:, None], bs.parse(name)
    single, chosen = each_block(fmt, q := reference.choose_qparams(x, fmt), q.scale.shape)
    step = reference.step_of(chosen, single)
    assert torch.equal(nearest_scale(step, chosen.outer, single), chosen.scale)


@pytest.mark.parametrize("name", ["int8:tensor:pow2/floor", "e2m1:tensor:e8m0/ceil"])
def test_a_power_of_two_is_the_nearest_by_its_logarithm(name: str) -> None:
    fmt = bs.parse(name)
    below, above = 0x3FB504F3, 0x3FB504F4  # the floats beside the square root of 2
    wanted = torch.tensor([below, above], dtype=torch.int32).view(torch.float32)
    steps = reference.step_of(QParams(nearest_scale(wanted, None, fmt)), fmt)
    assert steps.tolist() == [1.0, 2.0]


@pytest.mark.some(3)
@pytest.mark.parametrize("scale", ["e8m0/floor", "pow2/ceil", "fp32", "fp16", "bf16", "e4m3"])
@pytest.mark.parametrize("element", ["int4", "e2m1", "int8"])
def test_a_wanted_step_is_stored_as_the_nearest(scale: str, element: str) -> None:
    fmt = bs.parse(f"{element}:group1:{scale}")
    wanted = torch.tensor([[0.26, 0.49, 0.5, 0.7, 0.72, 1.0, 1.3, 1.41, 1.42, 1.9, 3.0, 5.7]])
    outer = torch.full_like(wanted, 0.5) if scale == "e4m3" else None
    stored = nearest_scale(wanted, outer, fmt)
    if "/" in scale:
        expected = 2.0 ** np.rint(np.log2(wanted.numpy()))
    else:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
        expected = wanted.to(dtype.get(scale, torch.float32)).float().numpy()
    assert stored.dtype == fmt.scale.dtype
    np.testing.assert_array_equal(reference.step_of(QParams(stored, outer), fmt).numpy(), expected)
