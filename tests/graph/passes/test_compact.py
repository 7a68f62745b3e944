"""Scales as other libraries take them."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed

from blockscale.graph.passes import LOWERING, apply, compact
from blockscale.graph.passes.compact import channel_axis
from blockscale.graph.passes.compact import compact as compact_scale
from tests.graph.passes.nets import graph_of, run


@pytest.mark.parametrize(
    ("scale", "axis"),
    [
        ((), 0),
        ((1,), 0),
        ((1, 1, 1), 0),
        ((4, 1, 1), 0),
        ((1, 4), 1),
        ((4, 4), None),
        ((4, 1, 2), None),
    ],
)
def test_the_axis_is_what_is_more_than_one(scale: tuple[int, ...], axis: int | None) -> None:
    assert channel_axis(scale) == axis


def test_one_a_channel() -> None:
    scale = torch.rand(1, 5, 1)
    assert torch.equal(compact_scale(scale), scale[0, :, 0])
    assert compact_scale(torch.rand(1, 1, 1)).shape == (1,)
    with pytest.raises(ValueError, match=r"shape \(5, 1, 3\) is not one a channel: expected one"):
        compact_scale(torch.rand(5, 1, 3))


def test_one_a_channel_and_group() -> None:
    """[K, 1, 1, G] is [K, G], and [K, 1, 1, 1] is [K, 1]: dimensions of 1 go, nothing is merged."""
    scale = torch.rand(5, 1, 1, 3)
    assert torch.equal(compact_scale(scale, groups=True), scale[:, 0, 0])
    assert compact_scale(torch.rand(5, 1, 1, 1), groups=True).shape == (5, 1)
    with pytest.raises(ValueError, match=r"\(5, 2, 1, 3\) has more than channels and groups"):
        compact_scale(torch.rand(5, 2, 1, 3), groups=True)


def quantized(self, x, axis: int = 1):
    q = torch.ops.quantized_decomposed.quantize_per_channel
    return q(x, self.scale.reshape(-1), self.zero.reshape(-1), axis, -128, 127, torch.int8)


def graph_with(scale: torch.Tensor, axis: int = 1):
    """A graph in which a per-channel op is given scales of full rank."""
    zero = torch.zeros(scale.shape, dtype=torch.int64)
    graph = graph_of(quantized, torch.randn(3, 5, 4), scale=scale, zero=zero)
    node = next(n for n in graph.graph.nodes if "per_channel" in str(n.target))
    flat = node.args[1:3]
    node.args = (node.args[0], flat[0].args[0], flat[1].args[0], axis, *node.args[4:])
    graph.graph.eliminate_dead_code()
    return graph


def test_ops_that_take_an_axis_get_compact_scales() -> None:
    scale = torch.rand(1, 5, 1) + 0.1
    x = torch.randn(3, 5, 4)
    expected = run(graph_of(quantized, x, scale=scale, zero=torch.zeros(5, dtype=torch.int64)), x)
    graph = graph_with(scale)
    assert compact in LOWERING
    assert apply(graph, (compact,)) == {"compact": 2}
    assert torch.equal(run(graph, x)[0], expected[0])


def test_scales_of_groups_or_another_axis_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"scales of shape .* go along dimension None, expected axis 1"
    ):
        compact.run(graph_with(torch.rand(1, 5, 4)))
    with pytest.raises(ValueError, match="go along dimension 1, expected axis 0"):
        compact.run(graph_with(torch.rand(1, 5, 1), axis=0))
