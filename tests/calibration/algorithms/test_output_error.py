# SPDX-License-Identifier: BSD-3-Clause
"""A transform is taken where it lowers the error of the layer's output."""

import pytest
import torch

from blockscale.calibration.algorithms.output_error import OutputError
from blockscale.calibration.algorithms.smoothquant import SmoothQuant, divided_by
from blockscale.core.parse import parse
from tests.calibration.algorithms.smoothing import INT8, prepared
from tests.calibration.algorithms.transforms import error, outlying, stats_of


def test_the_search_leaves_no_trace() -> None:
    weight, x = outlying()
    kept, stats, state = weight.clone(), stats_of(x), torch.get_rng_state()
    weight.requires_grad_()
    fmt = parse("int4:group8:fp32:stochastic")
    given = parse("int4:token:fp32:stochastic")
    before, _ = SmoothQuant().prepare(weight, fmt, given, stats, "layer")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weight, kept)
    assert not before.factor.requires_grad


def test_weights_that_hold_nan_are_left_alone() -> None:
    weight, x = outlying()
    for odd in (torch.nan, torch.inf):
        weight[0, 0] = odd
        assert prepared(SmoothQuant(), weight, x) == (
            None, ["not transformed: its weight holds a NaN or an infinity"],
        )  # fmt: skip


def test_nothing_to_gain() -> None:
    weight, x = torch.eye(4), torch.eye(4)
    assert prepared(SmoothQuant(), weight, x, "int8", "int8")[1] == [
        "not transformed: its output has no error"
    ]


def test_the_error_is_that_of_the_definition() -> None:
    weight, x = outlying()
    before = divided_by(x.abs().amax(0), pow2=False)
    for given in (None, "int8_token", "int8", "mxfp8", "int8:channel-1:fp32"):
        form = None if given is None else parse(given)
        measured = OutputError(weight, INT8, form, stats_of(x), "layer")
        for each in (None, before):
            expected = error(each, weight, x, "int8_channel", given)
            assert measured.of(each) == pytest.approx(expected, rel=1e-3)
