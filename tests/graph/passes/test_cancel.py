# SPDX-License-Identifier: BSD-3-Clause
"""Quantizing again what was dequantized."""

import pytest
import torch

import blockscale as bs
from blockscale.core.reference import QParams
from blockscale.graph.passes import cancel, moving
from blockscale.graph.passes.cancel import all_stable
from tests.graph.passes.nets import graph_of, names, round_trip, same_after

X = torch.randn(3, 6, 64) * 3
ONE = torch.full((1, 1, 1), 0.05)


def twice(fmt: str, scale: torch.Tensor, other: torch.Tensor, zero=None, move=lambda x: x):
    def net(self, x):
        y = move(round_trip(x, fmt, self.scale, self.zero))
        return round_trip(y, fmt, self.other, self.zero) * 2

    return graph_of(net, X, scale=scale, other=other, zero=zero)


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "int4:tensor:fp32", "e4m3:tensor:fp32",
                                 "int16:tensor:fp32", "uint8:tensor:fp32:asym"])  # fmt: skip
def test_equal_scales_cancel(fmt: str) -> None:
    zero = torch.full((1, 1, 1), 9, dtype=torch.int32) if "asym" in fmt else None
    graph = twice(fmt, ONE, ONE.clone(), zero)
    assert same_after(graph, (cancel,), X, X[:1]) == {"cancel": 1}
    assert names(graph).count("blockscale.quantize.default") == 1


def test_channels_cancel() -> None:
    scale = torch.rand(1, 1, 64) + 0.1
    assert same_after(twice("int8:channel-1:fp32", scale, scale), (cancel,), X) == {"cancel": 1}


def test_through_moving_ops() -> None:
    graph = twice("int8:tensor:fp32", ONE, ONE, move=lambda x: x.transpose(1, 2))
    assert same_after(graph, (moving, cancel), X, X[:2])["cancel"] == 1


@pytest.mark.slow
def test_other_scales_and_formats_stay() -> None:
    assert same_after(twice("int8:tensor:fp32", ONE, ONE * 2), (cancel,), X) == {"cancel": 0}

    def formats(self, x):
        y = round_trip(x, "int8:tensor:fp32", self.scale)
        return round_trip(y, "e4m3:tensor:fp32", self.scale) * 2

    assert same_after(graph_of(formats, X, scale=ONE), (cancel,), X) == {"cancel": 0}


def test_a_scale_that_is_chosen_stays() -> None:
    def net(_, x):
        return round_trip(round_trip(x, "mxfp8"), "mxfp8") * 2

    assert same_after(graph_of(net, X), (cancel,), X) == {"cancel": 0}


@pytest.mark.slow
def test_codes_that_do_not_come_back_stay() -> None:
    """Int16 through bfloat16, and scales under which values are not finite."""

    def narrow(self, x):
        y = round_trip(x.to(torch.bfloat16), "int16:tensor:fp32", self.scale)
        return round_trip(y, "int16:tensor:fp32", self.scale) * 2

    assert same_after(graph_of(narrow, X, scale=ONE / 100), (cancel,), X) == {"cancel": 0}
    for bad in (3e38, float("inf"), float("nan")):
        scale = torch.full((1, 1, 1), bad)
        assert same_after(twice("int8:tensor:fp32", scale, scale), (cancel,), X) == {"cancel": 0}


@pytest.mark.parametrize("fmt", ["int8:channel0:fp32", "int8:channel0:fp32:full",
                                 "e4m3:channel0:fp32", "e2m1:channel0:fp32"])  # fmt: skip
def test_what_is_tried_is_all_that_there_is(fmt: str) -> None:
    """An oracle: quantized random values, which are codes that quantizing gives, come back."""
    form, scales = bs.parse(fmt), torch.rand(5, 1) + 0.01
    assert all_stable(QParams(scales), form, torch.float32)
    q = bs.quantize(torch.randn(5, 999) * scales * 100, fmt, scale=scales)
    again = bs.quantize(q.dequantize(), fmt, scale=scales)
    assert torch.equal(q.codes, again.codes)
