# SPDX-License-Identifier: BSD-3-Clause
"""Grids against the reference's own rounding, and the neighbours that half a gap reaches."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.learned.grids import grid_of
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
