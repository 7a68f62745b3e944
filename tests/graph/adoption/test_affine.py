# SPDX-License-Identifier: BSD-3-Clause
"""torchao's affine nodes against torchao itself."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.affine import LAYER, widen
from tests.graph.adoption.cases import A, adopted, graph_of, inputs, left, notes
from tests.graph.pt2e.flow import adopted as flow_adopted
from tests.graph.pt2e.flow import through_modules, through_pt2e
from tests.support.op_samples import bits

BLOCKS = [(6, 64), (1, 64), (6, 1), (1, 16), (2, 32), (1, 1)]
RANGES = [
    (torch.int8, None, None, 0),
    (torch.int8, -127, 127, 0),
    (torch.int8, None, None, 7),
    (torch.uint8, None, None, 120),
    (torch.uint8, 0, 15, 8),
    (torch.int8, -8, 7, 0),
    (torch.uint4, None, None, 5),
]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_given_scales(block) -> None:
    counts = [n // size for n, size in zip((6, 64), block, strict=True)]
    shape = [n for n, size, whole in zip(counts, block, (6, 64), strict=True) if size != whole]
    for rank in (counts, shape):  # torchao takes scales with and without covered dimensions
        torch.manual_seed(0)
        scale = torch.rand(rank) * 0.1 + 0.01
        zeros = {
            f"zeros{i}": torch.full(rank, zero, dtype=torch.int32)
            for i, (*_, zero) in enumerate(RANGES)
        }

        def both(x, scale, **zeros):
            found = []
            for zero, (dtype, low, high, _) in zip(zeros.values(), RANGES, strict=True):
                q = A.quantize_affine(x, block, scale, zero, dtype, low, high)
                found += [q, A.dequantize_affine(q, block, scale, zero, dtype, low, high)]
            return found

        graph = graph_of(both, torch.randn(6, 64), free=False, scale=scale, **zeros)
        made = adopted(graph)
        assert not left(made)
        for x in inputs((6, 64), 0.05):
            assert bits(made(x)) == bits(graph(x))
        full = scale.numel() == 1
        assert all(full or list(p.shape) == counts for p in made.buffers() if p.is_floating_point())


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("mapping", ["SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"])
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("per", ["tensor", "token", "group"])
@pytest.mark.parametrize("low", [-128, -127])
def test_dynamic(mapping: str, keepdim: bool, per: str, low: int) -> None:
    def both(x):
        block = {"tensor": list(x.shape), "token": [1, 1, 64], "group": [1, 1, 16]}[per]
        scale, zero = A.choose_qparams_affine(
            x, mapping, block, torch.int8, low, 127, None, torch.float32, torch.int32, keepdim
        )
        q = A.quantize_affine(x, block, scale, zero, torch.int8, low, 127)
        return q, A.dequantize_affine(q, block, scale, zero, torch.int8, low, 127)

    graph = graph_of(both, torch.randn(4, 3, 64))
    made = adopted(graph)
    for x in inputs((4, 3, 64), 0.05):
        for each in (x, x[:2]):
            assert bits(made(each)) == bits(graph(each))
    if mapping == "ASYMMETRIC" and low == -127:
        return  # no element has these codes with a zero point: some nodes stay
    assert not left(made)
    chosen = [n for n in made.graph.nodes if "choose_quantize" in str(n.target)]
    assert len(chosen) == 1 and not list(made.buffers())


@pytest.mark.slow
def test_a_smallest_scale_keeps_the_choice() -> None:
    def both(x):
        block = [1, 64]
        scale, zero = A.choose_qparams_affine(
            x, "SYMMETRIC", block, torch.int8, None, None, 1e-5, torch.float32, torch.int32, True
        )
        q = A.quantize_affine(x, block, scale, zero, torch.int8)
        return A.dequantize_affine(q, block, scale, zero, torch.int8)

    graph = graph_of(both, torch.randn(4, 64))
    made = adopted(graph)
    assert left(made) == ["torchao.choose_qparams_affine.default"]
    for x in inputs((4, 64), 1e-6):
        assert bits(made(x)) == bits(graph(x))


def test_arithmetic_in_other_floats_stays() -> None:
    scale, zeros = torch.rand(4, 1).bfloat16(), torch.zeros(4, 1, dtype=torch.int32)

    def both(x, scale, zeros):
        q = A.quantize_affine(x, [1, 64], scale, zeros, torch.int8)
        return A.dequantize_affine(q, [1, 64], scale, zeros, torch.int8, None, None, torch.bfloat16)

    x = torch.randn(4, 64).bfloat16()
    graph = graph_of(both, x, free=False, scale=scale, zeros=zeros)
    made = adopted(graph)
    assert len(left(made)) == 2 and "its scale is torch.bfloat16" in notes(made)
    assert bits(made(x)) == bits(graph(x))


def test_partly_free_blocks_of_constants() -> None:
    """A constant scale for each row of a free number of rows cannot be."""
    scale = torch.rand(4)

    def values(x, scale):
        q = x.to(torch.int8)
        return A.dequantize_affine(q, [1, 64], scale, None, torch.int8)

    with pytest.raises(Exception, match=r"rows|shape|dynamic|constrain"):
        graph_of(values, torch.randn(4, 64), scale=scale)


# Layers of bfloat16 and float16 models compute in float32, as in the module flow.


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.table = nn.Conv2d(3, 8, 2), nn.Embedding(7, 16)
        self.fc, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, image, tokens):
        y = torch.relu(self.conv(image)).mean((2, 3))
        return self.out(torch.relu(self.fc(y)) + self.table(tokens))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.some(12)
@pytest.mark.parametrize("bias", [None, "int32", "int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_the_modules(dtype: torch.dtype, bias: str | None) -> None:
    model = Net().eval().to(dtype)
    data = [(torch.randn(4, 3, 5, 5).to(dtype), torch.tensor([0, 3, 6, 6]))]
    recipe = bs.Recipe("int8_channel", "uint8", bias=bias)
    with bs.use("reference"), torch.no_grad():
        graph = flow_adopted(through_pt2e(model, recipe, data))
        modules = through_modules(copy.deepcopy(model), recipe, data)
        assert graph(*data[0]).dtype == dtype
        assert bits(graph(*data[0])) == bits(modules(*data[0]))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_not_marked_stays() -> None:
    """bfloat16 products of others mean bfloat16."""
    graph = graph_of(
        lambda x, w: x @ w, torch.randn(3, 4).bfloat16(), w=torch.ones(4, 2).bfloat16()
    )
    assert widen(graph) == 0
    node = next(n for n in graph.graph.nodes if "matmul" in str(n.target) or "mm" in str(n.target))
    node.meta[LAYER] = True
    assert widen(graph) == 1 and widen(graph) == 0
    graph.recompile()
    x = torch.randn(3, 4).bfloat16()
    assert bits(graph(x)) == bits((x.float() @ torch.ones(4, 2)).bfloat16())
