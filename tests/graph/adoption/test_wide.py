# SPDX-License-Identifier: BSD-3-Clause
"""Layers of bfloat16 and float16 models compute in float32, as in the module flow."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.wide import LAYER, widen
from tests.graph.adoption.cases import graph_of
from tests.graph.pt2e.flow import adopted, through_modules, through_pt2e
from tests.support.op_samples import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.table = nn.Conv2d(3, 8, 2), nn.Embedding(7, 16)
        self.fc, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, image, tokens):
        y = torch.relu(self.conv(image)).mean((2, 3))
        return self.out(torch.relu(self.fc(y)) + self.table(tokens))


@pytest.mark.some(3)
@pytest.mark.parametrize("bias", [None, "int32", "int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_as_the_modules(dtype: torch.dtype, bias: str | None) -> None:
    model = Net().eval().to(dtype)
    data = [(torch.randn(4, 3, 5, 5).to(dtype), torch.tensor([0, 3, 6, 6]))]
    recipe = bs.Recipe("int8_channel", "uint8", bias=bias)
    with bs.use("reference"), torch.no_grad():
        graph = adopted(through_pt2e(model, recipe, data))
        modules = through_modules(copy.deepcopy(model), recipe, data)
        assert graph(*data[0]).dtype == dtype
        assert bits(graph(*data[0])) == bits(modules(*data[0]))


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
