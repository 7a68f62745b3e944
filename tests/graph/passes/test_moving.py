"""Moving ops on codes and scales in the place of floats."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.nodes import dequantize_of, ours
from blockscale.graph.passes import moving
from tests.graph.passes.nets import (
    Coded,
    Function,
    exported,
    graph_of,
    names,
    round_trip,
    same_after,
)

X = torch.randn(3, 6, 64)
MOVES = {
    "view": lambda x: x.view(x.shape[0], 6, 4, 16),
    "view of rows": lambda x: x.view(x.shape[0] * 6, 64),
    "view of all": lambda x: x.view(x.shape[0], 6 * 64),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 32)),
    "permute": lambda x: x.permute(1, 0, 2),
    "permute of the last": lambda x: x.permute(-1, 0, 1),
    "transpose": lambda x: x.transpose(1, -2),
    "heads": lambda x: x.view(x.shape[0], 6, 4, 16).transpose(1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze last": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "slice": lambda x: x[:, 2:5],
    "slice of a step": lambda x: x[:, ::2],
    "slice from the end": lambda x: x[:, -2:],
    "slice of rows": lambda x: x[..., 16:48],
    "slice within a group": lambda x: x[..., 8:40],
    "select": lambda x: x[:, -1],
    "select last": lambda x: x.select(-1, 3),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
}
FORMATS = (
    *("int8:tensor:fp32", "int8:token:fp32", "mxfp8", "int4:group16:fp32", "nvfp4"),
    *("uint8:group16:fp32:asym", "int8:channel-1:fp32", "int8:tile3x32:fp32", "int8:flat32:fp32"),
)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("move", MOVES)
def test_the_same_bits(move: str, fmt: str) -> None:
    """Whether the pass moves codes or leaves floats to move."""
    graph = graph_of(lambda _, x: MOVES[move](round_trip(x, fmt)) + 1, X)
    same_after(graph, (moving,), X, X[:2])


def moved(move: str, fmt: str) -> str:
    """The format of what is dequantized after the move; "" if the floats moved."""
    graph = graph_of(lambda _, x: MOVES[move](round_trip(x, fmt)) + 1, X)
    same_after(graph, (moving,), X)
    node = list(graph.graph.nodes)[-2].args[0]
    found = dequantize_of(node)
    return found.coded.fmt.split(":")[1] if found else ""


@pytest.mark.parametrize(
    ("move", "fmt", "block"),
    [
        *((move, "int8:tensor:fp32", "tensor") for move in MOVES if move != "select last"),
        ("select last", "int8:tensor:fp32", ""),
        ("view", "int8:group16:fp32", "group16"),
        ("view", "int8:group32:fp32", "tile2x16"),
        ("view", "int8:group8:fp32", "group8"),
        ("view", "int8:token:fp32", "block*x*"),
        ("view of rows", "int8:token:fp32", "token"),
        ("view of all", "int8:token:fp32", "group64"),
        ("permute", "int8:token:fp32", "token"),
        ("permute of the last", "int8:token:fp32", "block*x1x1"),
        ("permute of the last", "int8:group16:fp32", "group16@-3"),
        ("permute of the last", "int8:channel-1:fp32", "channel0"),
        ("heads", "int8:group16:fp32", "group16"),
        ("transpose", "int8:channel-1:fp32", "channel-1"),
        ("slice of rows", "int8:group16:fp32", "group16"),
        ("slice within a group", "int8:group16:fp32", ""),
        ("slice", "int8:tile3x32:fp32", ""),
        ("slice of rows", "int8:token:fp32", "token"),
        ("view", "int8:flat32:fp32", ""),
        ("view", "int4:group16:fp32", "group16"),
        ("permute of the last", "int4:group16:fp32", ""),
        ("unflatten", "int3:group32:fp32", "group32"),
        ("select", "int8:group2@1:fp32", "group1"),
    ],
)
def test_the_block_is_spelled_anew(move: str, fmt: str, block: str) -> None:
    assert moved(move, fmt) == block


def test_a_permute_of_a_square_permutes_its_block() -> None:
    """[8, 8] under channel1: [1, 8] becomes [8, 1], of channel0."""
    x = torch.randn(8, 8)
    net = Function(lambda _, x: round_trip(x, "int8:channel1:fp32").t() + 1)
    assert same_after(exported(net, x, dynamic=False), (moving,), x)["moving"] == 1


def test_cat_of_one_scale_and_of_several() -> None:
    scale, other = torch.full((1, 1, 1), 0.1), torch.full((1, 1, 1), 0.2)
    fmt = "int8:tensor:fp32"

    def joined(net, x):
        a, b = round_trip(x, fmt, net.scale), round_trip(x + 1, fmt, net.other)
        return torch.cat([a, b], 1) + 1

    for second, count in ((scale.clone(), 1), (other, 0)):
        graph = graph_of(joined, X, scale=scale, other=second)
        assert same_after(graph, (moving,), X, X[:1])["moving"] == count


@pytest.mark.parametrize(
    ("fmt", "dim", "done"),
    [
        ("int8:token:fp32", 1, True),
        ("int8:token:fp32", -1, False),
        ("mxfp8", -1, True),
        ("mxfp8", 0, True),
        ("int4:group16:fp32", 2, True),
        ("int8:group48:fp32", 2, False),
        ("int8:tile4x32:fp32", 1, False),
        ("int8:tile3x32:fp32", 1, True),
        ("uint8:token:fp32:asym", 1, True),
        ("int8:channel-1:fp32", 1, False),
        ("nvfp4", 1, False),
    ],
)
def test_cat_of_blocks(fmt: str, dim: int, done: bool) -> None:
    graph = graph_of(
        lambda _, x: torch.cat([round_trip(x, fmt), round_trip(x * 2, fmt)], dim) + 1, X
    )
    assert same_after(graph, (moving,), X, X[:2])["moving"] == int(done)


@pytest.mark.parametrize(
    ("fmt", "zero", "done"),
    [("int8:tensor:fp32", None, True), ("uint8:tensor:fp32:asym", 7, True),
     ("e4m3:tensor:fp32", None, True), ("int8:token:fp32", None, False),
     ("binary:tensor:fp32", None, False)],
)  # fmt: skip
def test_padding_takes_the_code_of_zero(fmt: str, zero: int | None, done: bool) -> None:
    scale = None if "token" in fmt else torch.full((1, 1, 1), 0.05)
    point = None if zero is None else torch.full((1, 1, 1), zero, dtype=torch.int32)

    def padded(net, x):
        given = getattr(net, "scale", None)
        return F.pad(round_trip(x, fmt, given, getattr(net, "zero", None)), (1, 2, 0, 3)) * 2

    constants = {} if scale is None else {"scale": scale}
    constants |= {} if point is None else {"zero": point}
    graph = graph_of(padded, X, **constants)
    assert same_after(graph, (moving,), X, X[:1])["moving"] == int(done)


def test_padding_with_another_number_stays() -> None:
    scale = torch.full((1, 1, 1), 0.05)
    graph = graph_of(
        lambda net, x: F.pad(round_trip(x, "int8:tensor:fp32", net.scale), (1, 2), value=1.0) * 2,
        X, scale=scale,
    )  # fmt: skip
    assert same_after(graph, (moving,), X)["moving"] == 0


def test_indices_are_no_codes() -> None:
    """Integer index arithmetic has views too, and nothing is dequantized there."""

    def picked(net, x):
        index = torch.arange(6).view(2, 3).permute(1, 0).reshape(6) * 2 % 6
        return x.index_select(1, index) + net.table.view(64)

    graph = graph_of(picked, X, table=torch.randn(8, 8))
    before = names(graph)
    assert same_after(graph, (moving,), X)["moving"] == 0
    assert names(graph) == before


def test_a_weight_stays_as_it_is_stored() -> None:
    weight = Coded(torch.randn(8, 64), "int8:channel0:fp32")
    graph = graph_of(lambda net, x: x @ net.weight().t(), X, weight=weight)
    assert same_after(graph, (moving,), X)["moving"] == 0


def test_expand_waits_for_a_reader_of_codes() -> None:
    def seen(net, x):
        return torch.cumsum(round_trip(x, "int8:token:fp32").unsqueeze(1).expand(-1, 5, 6, 64), 1)

    graph = graph_of(seen, X)
    assert same_after(graph, (moving,), X)["moving"] == 1  # the unsqueeze
    assert ours.dequantize.default in [n.target for n in graph.graph.nodes]
