# SPDX-License-Identifier: BSD-3-Clause
"""The nodes that are written: pairs share their parts, packed codes stay packed between them."""

import pytest
import torch

from tests.graph.adoption.cases import A, D, adopted, graph_of
from tests.support.op_samples import bits


def nodes(graph) -> list:
    return [n for n in graph.graph.nodes if n.op == "call_function"]


def test_a_pair_shares_its_parts_and_its_packed_codes() -> None:
    def both(x):
        q = D.quantize_per_tensor(x, 0.3, 3, 0, 15, torch.uint8)
        return D.dequantize_per_tensor(q, 0.3, 3, 0, 15, torch.uint8)

    graph = graph_of(both, torch.randn(4, 11))
    made = adopted(graph)
    names = [str(n.target) for n in nodes(made)]
    assert names == ["blockscale.quantize.default", "blockscale.dequantize.default"]
    q, dq = nodes(made)
    assert dq.args[0] is q and dq.args[1] is q.args[1] and dq.args[2] is q.args[2]
    assert q.args[4] == dq.args[4] == "uint4:tensor:fp32:asym:recip"
    assert len(list(made.buffers())) == 2


def test_a_free_row_size_is_a_node() -> None:
    def both(x):
        q = D.quantize_per_tensor(x, 0.5, 0, -8, 7, torch.int8)
        return D.dequantize_per_tensor(q, 0.5, 0, -8, 7, torch.int8)

    sizes = {"x": {1: torch.export.Dim("n", min=2)}}
    from blockscale.graph.program import imported
    from tests.graph.adoption.cases import Calls

    graph = imported(torch.export.export(Calls(both), (torch.randn(4, 12),), dynamic_shapes=sizes))
    made = adopted(graph)
    for n in (12, 7, 2):
        x = torch.randn(4, n)
        assert bits(made(x)) == bits(graph(x))


def test_choices_become_one_node_with_theirs_gone() -> None:
    def both(x):
        scale, zero = A.choose_qparams_affine(x, "ASYMMETRIC", [1, 16], torch.uint8, 0, 255)
        q = A.quantize_affine(x, [1, 16], scale, zero, torch.uint8, 0, 255)
        return A.dequantize_affine(q, [1, 16], scale, zero, torch.uint8, 0, 255), q

    graph = graph_of(both, torch.randn(4, 16))
    made = adopted(graph)
    names = [str(n.target) for n in nodes(made)]
    assert names.count("blockscale.choose_quantize.default") == 1
    assert not [name for name in names if "torchao" in name]
    x = torch.randn(5, 16)
    assert bits(made(x)) == bits(graph(x))


def test_codes_out_of_range_stay() -> None:
    """Codes that say 4 bits and have more would be cut by packing."""
    codes = torch.tensor([[7, -9, 3, 0]], dtype=torch.int8)

    def values(x, codes):
        return x + D.dequantize_per_tensor(codes, 0.5, 0, -8, 7, torch.int8)

    graph = graph_of(values, torch.randn(3, 4), codes=codes)
    made = adopted(graph)
    assert str(nodes(made)[0].target).startswith("quantized_decomposed")
    x = torch.randn(3, 4)
    assert bits(made(x)) == bits(graph(x))


@pytest.mark.parametrize(
    ("scales", "scale"),
    [
        ([0.5, 2.0**-20, 4.0], "pow2/nearest"),
        ([2.0**-126, 2.0**127, 1.0], "pow2/nearest"),
        ([0.5, 0.3, 4.0], "fp32"),
        ([0.5, 2.0**-127, 4.0], "fp32"),  # a subnormal number
    ],
)
def test_powers_of_two_are_called_so(scales, scale) -> None:
    """And only where all are; bits are the producer's, whose reciprocals are exact then."""
    zeros = torch.zeros(3, dtype=torch.int64)

    def both(x, s, z):
        q = D.quantize_per_channel(x, s, z, 0, -128, 127, torch.int8)
        return D.dequantize_per_channel(q, s, z, 0, -128, 127, torch.int8)

    x = torch.randn(3, 40) * 100
    graph = graph_of(both, x, free=False, s=torch.tensor(scales), z=zeros)
    made = adopted(graph)
    q, dq = nodes(made)
    assert q.args[4] == f"int8:channel0:{scale}:full" + ":recip" * (scale == "fp32")
    assert dq.args[4] == q.args[4]
    for each in (x, x / 1e30, torch.tensor([[0.25], [2.0**-21], [2.0]]) * torch.arange(-20, 20)):
        assert bits(made(each)) == bits(graph(each))
