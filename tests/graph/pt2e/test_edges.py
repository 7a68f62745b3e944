# SPDX-License-Identifier: BSD-3-Clause
"""What stands on an edge of a prepared program: observers let tensors pass, fakes do not."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.observers import make
from blockscale.core.operand import Quantizer
from blockscale.core.pack import from_stored, to_stored
from blockscale.core.parse import parse
from blockscale.graph.pt2e import edges as written
from tests.graph.adoption.cases import graph_of
from tests.support.op_samples import bits

pytest.importorskip("torchao")


def edge(kind: str, part: str = "input", fmt: str = "uint8", **more):
    from blockscale.graph.pt2e import edges

    place = edges.Place(part, fmt, f"fc.{part}", f"the {part} of fc", **more)
    return getattr(edges, kind)(place, "min_max", dtype=torch.uint8, quant_min=None)


def test_an_observer_lets_tensors_pass_and_knows_the_scale() -> None:
    x, watch, observer = torch.randn(3, 8), edge("Watch"), make("min_max", "uint8")
    assert watch.missing
    assert watch(x) is x
    observer.observe(x)
    scale, zero = watch.calculate_qparams()
    assert not watch.missing
    assert bits(scale) == bits(observer.qparams().scale)
    assert bits(zero) == bits(observer.qparams().zero_point)


def test_a_convolution_is_seen_with_its_channels_last() -> None:
    watch = edge("Watch", fmt="int8:channel-1:fp32", layout="channels_last", rank=4)
    x = torch.randn(2, 5, 3, 4)
    watch(x)
    assert watch.qparams().scale.shape == (1, 5)
    expected = x.abs().amax((0, 2, 3)) / 127
    assert torch.equal(watch.qparams().scale.reshape(-1), expected)


@pytest.mark.parametrize("layout", ["plain", "transposed", "channels_last"])
def test_fake_quantizers_pass_gradients(layout: str) -> None:
    rank = 4 if layout == "channels_last" else 2
    w = torch.randn(*(4, 6, 2, 2)[:rank], requires_grad=True)
    fake = edge("Fake", "weight", "int8_channel", layout=layout, rank=rank)
    y = fake(w)
    assert y.shape == w.shape and not torch.equal(y, w)
    y.sum().backward()
    assert torch.equal(w.grad, torch.ones_like(w))
    outputs = 1 if layout == "transposed" else 0
    moved = w.detach().movedim(outputs, 0).flatten(1)
    assert torch.equal(
        y.detach().movedim(outputs, 0).flatten(1), bs.fake_quantize(moved, "int8_channel")
    )


def test_fakes_are_switched_as_torchao_switches_them() -> None:
    fake, x = edge("Fake"), torch.randn(3, 8)
    first = fake(x)
    fake.disable_observer()
    assert torch.equal(fake(x), first)
    fake(x * 100)
    assert torch.equal(fake(x), first)
    fake.disable_fake_quant()
    assert fake(x) is x


def test_dynamic_edges_have_no_scale_yet() -> None:
    watch = edge("Watch", fmt="mxfp8")
    watch(torch.randn(3, 64))
    assert not watch.missing and watch.qparams() is None
    with pytest.raises(ValueError, match="the input of fc: its scale is dynamic"):
        watch.calculate_qparams()


def test_edges_are_copied_with_what_they_saw() -> None:
    watch = edge("Watch")
    watch(torch.randn(3, 8))
    assert bits(copy.deepcopy(watch).qparams().scale) == bits(watch.qparams().scale)
    assert pickle.loads(pickle.dumps(watch.place)) == watch.place
    other = edge("Watch")
    other.load_state_dict(watch.state_dict())
    assert bits(other.qparams().scale) == bits(watch.qparams().scale)


# Tensors of layers through formats, as nodes: the bits of the ops, whatever the layout.


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


@pytest.mark.some(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", ["int8_channel", "int4:group16:fp32", "nvfp4"])
def test_weights(fmt: str, layout: str) -> None:
    torch.manual_seed(0)
    w = torch.randn(LAYOUTS[layout])
    form = str(parse(fmt))
    _, found = write(w, lambda g, x, like: written.weight(g, x, form, layout, like=like))
    values = bs.fake_quantize(to_stored(w, layout).contiguous(), fmt)
    assert bits(found) == bits(from_stored(values, layout, w.shape))


@pytest.mark.some(2)
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
