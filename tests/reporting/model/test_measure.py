# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of a tensor, against sums of numpy and counts by hand."""

import math

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.parse import formats
from blockscale.layers.before import Rotate, Scale
from blockscale.reporting.model.measure import BINS, CodeValues, measure, rows, slabs


@pytest.fixture
def x():
    return torch.randn(70, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["mxfp4", "int8_channel", "nf4", "uint4", "fp8", "int16"])
def test_errors_are_those_of_numpy(x, fmt):
    q = bs.quantize(x, fmt)
    a, b = (each.numpy().astype(np.float64) for each in (x, q.dequantize()))
    found = measure(q, x, elements=1000).to_dict()
    noise = ((a - b) ** 2).sum()
    assert found["sqnr"] == pytest.approx(10 * math.log10((a**2).sum() / noise), rel=1e-12)
    assert found["max_error"] == np.abs(a - b).max()
    counts = np.unique(q.codes.numpy(), return_counts=True)[1] / x.numel()
    assert found["entropy"] == pytest.approx(-(counts * np.log2(counts)).sum(), rel=1e-9)


def test_saturation_is_counted():
    """Steps of 1 and int4: codes are -7 … 7; 7.4 rounds to the end, 7.6 is cut off there."""
    x = torch.tensor([[0.0, 1.0, 7.0, 7.4, 7.6, -7.0, -7.6, -30.0]])
    q = bs.quantize(x, "int4:tensor:fp32", scale=torch.ones(1, 1))
    found = measure(q, x)
    assert found.clipped == 3
    assert found.at_ends == 6 / 8
    assert found.beyond == 1  # -30 lies out of the histogram, which ends at -8.26
    histogram = found.histogram()
    assert histogram["values"] == [3, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 3]
    assert sum(histogram["weights"]) == 7
    assert len(histogram["weights"]) == BINS


def test_zero_of_an_unsigned_format_is_no_end():
    x = torch.tensor([[0.0, 0.0, 1.0, 15.0]])
    q = bs.quantize(x, "uint4:tensor:fp32", scale=torch.ones(1, 1))
    assert measure(q).at_ends == 1 / 4
    asym = bs.quantize(torch.tensor([[-8.0, 7.0, 0.0, 0.0]]), "int4:tensor:fp32:asym")
    assert measure(asym).at_ends == 2 / 4


def test_zero_points_shift_the_histogram():
    """Numbers 0 … 15 under int4 with a zero point: every code once, weights on their codes."""
    x = torch.arange(16.0)[None]
    q = bs.quantize(x, "int4:tensor:fp32:asym")
    found = measure(q, x)
    assert found.histogram()["values"] == [1] * 16
    edges = found.grid.edges
    assert found.weights is not None
    hit = [i for i, n in enumerate(found.weights.tolist()) if n]
    assert all(any(edges[i] <= v <= edges[i + 1] for i in hit) for v in found.grid.points)
    assert (found.clipped, found.beyond) == (0, 0)


@pytest.mark.parametrize("before", [Scale(2.0 ** (torch.arange(128) % 5 - 2)), Rotate(128, 32)])
def test_a_transform_is_undone_for_errors_and_done_for_the_grid(x, before):
    q = bs.quantize(before.to_weight(x), "int8_channel")
    back = before.from_weight(q.dequantize()).double()
    found = measure(q, x, before, elements=1000)
    noise = float((x.double() - back).square().sum())
    assert found.noise == pytest.approx(noise, rel=1e-9)
    plain = measure(q, before.to_weight(x))
    assert torch.equal(found.weights, plain.weights)


def test_equal_tensors_and_odd_values():
    x = torch.tensor([[1.0, -2.0, 4.0, 0.0]])
    found = measure(bs.quantize(x, "int16:tensor:pow2/ceil"), x)
    assert found.sqnr == math.inf
    told = found.to_dict()
    assert (told["sqnr"], told["exact"], told["clipped"]) == (None, True, 0)
    odd = torch.tensor([[1.0, math.nan, math.inf, 0.0]])
    told = measure(bs.quantize(odd, "int8"), odd).to_dict()
    assert told["odd"] == 2
    assert not told["exact"]


def test_blocks_of_zeros_are_no_saturation():
    x = torch.zeros(4, 64)
    for fmt in ("mxfp4", "int8", "nvfp4", "ternary"):
        assert measure(bs.quantize(x, fmt), x).clipped == 0
    given = bs.quantize(x, "int8:tensor:fp32", scale=torch.zeros(1, 1))  # as others store them
    assert measure(given, x).clipped == 0


def test_a_grid_has_the_values_of_its_format():
    grid = CodeValues.of(bs.quantize(torch.randn(2, 32), "mxfp4"))
    positive = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert grid.points == [-value for value in reversed(positive)] + [0.0, *positive]
    assert (grid.low, grid.high) == (-6, 6)
    int8 = CodeValues.of(bs.quantize(torch.randn(2, 32), "int8"))
    assert int8.points == list(range(-127, 128))  # -128 is no value of it


def test_a_source_of_another_shape_is_refused(x):
    with pytest.raises(ValueError, match="shape"):
        measure(bs.quantize(x, "int8"), x.T)


def test_an_empty_tensor():
    assert measure(bs.quantize(torch.zeros(0, 64), "mxfp4")).to_dict()["at_ends"] == 0


MORE = ("int8:tile4x8:bf16:recip", "nf4:flat64:fp32", "nf4:flat48:fp32", "int4:group32:fp32:offset",
        "e2m1:group32@0:e8m0/floor", "int4:group32:fp16:asym")  # fmt: skip
SHAPES = ((70, 96), (5, 70, 96), (128,), (33, 40), (3, 4, 33, 64))


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", [*formats(), *MORE])
def test_together_they_are_the_tensor(fmt):
    for shape in SHAPES:
        if "tile" in fmt and len(shape) < 2:
            continue
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q = bs.quantize(x, fmt)
        parts = list(slabs(q, 1000))
        assert torch.equal(
            torch.cat([part.dequantize().flatten() for _, _, part in parts]),
            q.dequantize().flatten(),
        )
        assert torch.equal(torch.cat([rows(x, c, s).flatten() for c, s, _ in parts]), x.flatten())


def test_they_are_small():
    q = bs.quantize(torch.randn(400, 64), "mxfp4")
    sizes = [part.shape.numel() for _, _, part in slabs(q, 1000)]
    assert max(sizes) <= 1000
    assert len(sizes) > 20


def test_values_that_are_learned_stay_whole():
    with bs.use("reference"):
        q = bs.quantize(torch.randn(400, 64), "book4:group64:fp32")
    assert [part for _, _, part in slabs(q, 1000)] == [q]
