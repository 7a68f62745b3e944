# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of layers through formats, as nodes: the bits of the ops, whatever the layout."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.layout import from_stored, to_stored
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.graph.pt2e import written
from tests.graph.adoption.cases import graph_of
from tests.support.op_samples import bits


def write(x: Tensor, how) -> tuple[torch.fx.GraphModule, Tensor]:
    """The graph x -> `how` written behind x, and what it gives."""
    graph = graph_of(lambda x: torch.neg(x), x, free=False)
    placeholder = next(n for n in graph.graph.nodes if n.op == "placeholder")
    neg = next(n for n in graph.graph.nodes if "neg" in str(n.target))
    neg.args = (how(graph, placeholder, neg),)
    graph.graph.lint()
    graph.recompile()
    return graph, -graph(x)


LAYOUTS = {
    "plain": (6, 70),
    "transposed": (70, 6),
    "channels_last": (6, 4, 2, 3),
    "transposed_channels_last": (4, 6, 2, 3),
    "transposed_channels_last:2": (4, 3, 2, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", ["int8_channel", "int4:group16:fp32", "nvfp4"])
def test_weights(fmt: str, layout: str) -> None:
    torch.manual_seed(0)
    w = torch.randn(LAYOUTS[layout])
    form = str(parse(fmt))
    _, found = write(w, lambda g, x, like: written.weight(g, x, form, layout, like=like))
    values = bs.fake_quantize(to_stored(w, layout).contiguous(), fmt)
    assert bits(found) == bits(from_stored(values, layout, w.shape))


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (5, 3, 4)], ids=str)
@pytest.mark.parametrize("fmt", ["int8", "mxfp8", "int8:token:fp32"])
def test_convolutions_inputs(fmt: str, shape) -> None:
    x = torch.randn(shape)
    by = Quantizer(None, None, None, str(parse(fmt)))
    _, found = write(
        x, lambda g, n, like: written.activation(g, n, by, "channels_last", 4, like=like)
    )
    channel = len(shape) - 3
    expected = bs.fake_quantize(x.movedim(channel, -1).contiguous(), fmt).movedim(-1, channel)
    assert bits(found) == bits(expected)


def test_static_parts_are_buffers_that_equal_edges_share() -> None:
    x = torch.randn(2, 3, 8)
    q = bs.quantize(x.reshape(-1, 8), "uint8")

    def twice(graph, node, like):
        by = written.static(graph, q.qparams, q.format, "fc.input", like)
        again = written.static(graph, q.qparams, q.format, "fc.input", like)
        assert by.scale is again.scale and by.zero_point is again.zero_point
        other = q.qparams._replace(scale=q.qparams.scale * 2)
        assert written.static(graph, other, q.format, "fc.input", like).scale is not by.scale
        return written.activation(graph, node, by, "plain", 2, like=like)

    graph, found = write(x, twice)
    assert bits(found) == bits(bs.fake_quantize(x, "uint8", q.scale, q.zero_point))
    assert bits(graph.get_buffer("fc.input.scale")) == bits(q.qparams.scale)
