# SPDX-License-Identifier: BSD-3-Clause
"""Grids against the reference's own rounding, and the neighbours that half a gap reaches."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.block_scales import per_block
from blockscale.calibration.algorithms.learned.grids import BlockRanges, grid_of
from blockscale.core import reference
from blockscale.core.rounding import nearest_even

NAMES = ["int4", "int2", "uint4", "ternary", "e2m1", "e4m3", "e3m0", "log4", "nf4", "fp4", "apot4"]
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_without_a_shift_it_rounds_as_the_element_does(name: str) -> None:
    fmt = bs.parse(f"{name}:group8:fp32")
    grid, element = grid_of(fmt, None, CPU), fmt.element
    y = torch.cat([torch.linspace(-1.3, 1.3, 4001) * element.max, torch.tensor([0.0, -0.0])])
    points = grid.round_(y.clone(), torch.zeros_like(y))
    expected = element.decode(element.encode(y, nearest_even, None, fmt.wide))
    tie = (points - y).abs() == (expected - y).abs()  # which of two as near does not matter
    assert bool(((points == expected) | tie).all())
    assert torch.equal(element.decode(grid.codes(points)), points)


@pytest.mark.parametrize("name", NAMES)
def test_half_a_gap_reaches_both_neighbours_and_no_other(name: str) -> None:
    fmt = bs.parse(f"{name}:group8:fp32")
    grid = grid_of(fmt, None, CPU)
    patterns = torch.arange(2**fmt.element.bits, dtype=torch.uint8)
    points = fmt.element.decode(fmt.element.from_bits(patterns)).unique()
    points = points[(points >= grid.low) & (points <= grid.high)]
    low, high = points[:-1], points[1:]
    y = low + (high - low) * 0.3
    assert torch.equal(grid.gaps(y).expand_as(y), high - low)
    assert torch.equal(grid.round_(y.clone(), torch.full_like(y, -0.5)), low)
    assert torch.equal(grid.round_(y.clone(), torch.full_like(y, 0.5)), high)


def test_binary_is_a_sign_and_a_shift_of_half_a_gap_turns_it() -> None:
    grid = grid_of(bs.parse("binary:group8:fp32"), None, CPU)
    y = torch.tensor([-0.9, -0.1, 0.1, 0.9])
    assert grid.round_(y.clone(), torch.zeros(4)).tolist() == [-1, -1, 1, 1]
    assert grid.round_(y.clone(), torch.full((4,), 0.5)).tolist() == [1, 1, 1, 1]


def test_a_learned_codebook_has_its_own_table() -> None:
    book = torch.tensor([0.5, -1.0, 0.0, 2.0])
    grid = grid_of(bs.parse("book2:group8:fp32"), book, CPU)
    points = grid.round_(torch.tensor([0.4, -3.0, 9.0, 0.1]), torch.zeros(4))
    assert points.tolist() == [0.5, -1.0, 2.0, 0.0]
    assert grid.codes(points).tolist() == [0, 1, 3, 2]


# Ranges that factors move, against the formats' own rules and against differences.


def ranges_of(text: str) -> tuple[BlockRanges, bs.ops.tensor.QTensor, bs.Format]:
    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    q = bs.quantize(weight, text)
    single, _, outer = per_block(weight, q.format)
    return BlockRanges(single, q.qparams, outer), q, single


@pytest.mark.parametrize("text", ["int4:group8:fp32", "mxfp4", "nvfp4", "uint4:group8:fp16:asym"])
def test_no_factors_give_the_start(text: str) -> None:
    ranges, q, _ = ranges_of(text)
    assert torch.equal(ranges.qparams().scale, q.qparams.scale)


def test_an_octave_doubles_a_scale_and_moves_an_exponent() -> None:
    ranges, q, _ = ranges_of("int4:group8:fp32")
    ranges.factors.fill_(1.0)
    ranges.has_factors = True
    assert torch.equal(ranges.qparams().scale, 2 * q.qparams.scale)
    ranges, q, _ = ranges_of("mxfp4")
    for factor, exponents in [(0.4, 0), (0.6, 1), (-0.6, -1), (1.0, 1)]:
        ranges.factors.fill_(factor)
        ranges.has_factors = True
        assert torch.equal(ranges.qparams().scale.int(), q.qparams.scale.int() + exponents)


@pytest.mark.parametrize("text", ["uint4:group8:fp32:asym", "int4:group8:fp32:offset"])
def test_two_ends_move_by_themselves(text: str) -> None:
    ranges, q, single = ranges_of(text)
    assert ranges.two_ends and len(ranges.factors) == 2
    ranges.factors[1] = -0.5  # only the upper end comes down
    ranges.has_factors = True
    moved = ranges.qparams()
    values = q.dequantize()
    low, high = values.amin(1), values.amax(1)
    again = reference.fake_quantize(values, moved, single)
    step = reference.step_of(moved, single).amax()
    assert bool(((again.amin(1) - low).abs() <= step).all())
    assert bool((again.amax(1) < high).all())


@pytest.mark.parametrize("text", ["int4:group8:fp32", "uint4:group8:fp32:asym"])
def test_slopes_are_those_of_the_dequantized_ends(text: str) -> None:
    """What saturates follows its end: a difference of the loss says by how much."""
    ranges, q, single = ranges_of(text)
    none = torch.zeros(q.qparams.scale.shape)
    one = torch.ones_like(none)
    high = single.element.limits(single.wide)[1]
    if ranges.two_ends:
        slope = ranges.slopes(none, none, one)[1]
    else:
        slope = ranges.slopes(one * high, None, None)[0]

    def upper_end(factor: float) -> torch.Tensor:
        ranges.factors.zero_()
        ranges.factors[-1] = factor
        ranges.has_factors = True
        p = ranges.qparams()
        zero = 0.0 if p.zero_point is None else p.zero_point
        return (high - zero) * reference.step_of(p, single)

    difference = (upper_end(0.01) - upper_end(-0.01)) / 0.02
    near = 1e-3 if text.startswith("int") else 1.0  # zero points are integers: the end jumps
    assert bool(((difference - slope).abs() <= near * slope.abs().amax() + 1e-4).all())
