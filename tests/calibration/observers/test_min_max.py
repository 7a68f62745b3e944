# SPDX-License-Identifier: BSD-3-Clause
"""What bs.quantize chooses for all the data at once; averages of ranges, as torch.ao has them."""

import warnings

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core import reference
from tests.calibration.observers.seen import RANGE_FORMATS, draw, seeing


def test_min_max_is_what_quantize_chooses():
    for fmt in RANGE_FORMATS[:-1]:
        x = draw(8, 48)
        expected = reference.choose_qparams(x, bs.parse(fmt))
        found = seeing("min_max", fmt, x).qparams()
        assert all(
            a is b is None or torch.equal(a, b) for a, b in zip(expected, found, strict=True)
        )


def test_moving_average_is_torch_ao_s():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import MovingAverageMinMaxObserver

        theirs = MovingAverageMinMaxObserver(averaging_constant=0.01)
    ours = bs.observers.make("moving_average", "uint8:tensor:fp32:asym")
    for i in range(20):
        batch = draw(64, 4, seed=i) * (i + 1)
        theirs(batch)
        ours(batch)
    low, high, _ = ours.range()
    np.testing.assert_allclose(low.item(), theirs.min_val.item(), rtol=1e-5)
    np.testing.assert_allclose(high.item(), theirs.max_val.item(), rtol=1e-5)


def test_moving_average_starts_with_its_first_data():
    observer = bs.observers.make("moving_average:0.25", "uint8:tensor:fp32:asym")
    observer.observe(torch.full((3,), torch.nan))
    observer.observe(torch.tensor([-1.0, 3.0]))
    assert [r.item() for r in observer.range()[:2]] == [-1.0, 3.0]
    observer.observe(torch.full((3,), torch.inf))
    observer.observe(torch.tensor([-2.0, 7.0]))
    assert [r.item() for r in observer.range()[:2]] == [-1.25, 4.0]


def test_zeros_are_no_beginning():
    """A dummy batch, or a channel that is off at first: the average begins with a range."""
    observer = bs.observers.make("moving_average", "int8:channel-1:fp32")
    observer.observe(torch.zeros(2, 2))
    observer.observe(torch.tensor([[-1.0, 0.0], [3.0, 0.0]]))
    observer.observe(torch.tensor([[-1.0, -2.0], [3.0, 0.0]]))
    assert [each.tolist() for each in observer.range()[:2]] == [[[-1.0, -2.0]], [[3.0, 0.0]]]


def test_moving_average_merges_by_what_each_saw():
    a = seeing("moving_average", "uint8:tensor:fp32:asym", torch.tensor([-1.0, 2.0]))
    b = seeing("moving_average", "uint8:tensor:fp32:asym", torch.tensor([-5.0, 6.0, 0, 0, 0, 0]))
    assert [r.item() for r in a.merge_(b).range()[:2]] == [-4.0, 5.0]


@pytest.mark.parametrize("spec", ["mean", "moving_average:1"])
def test_means_of_one_batch_are_the_reference_s(spec):
    x = draw(16, 8)
    for element in ("binary", "ternary"):
        for block in ("tensor", "channel-1", "channel0", "group4"):
            fmt = f"{element}:{block}:fp32"
            expected = reference.choose_qparams(x, bs.parse(fmt)).scale
            assert torch.equal(seeing(spec, fmt, x).qparams().scale, expected)
