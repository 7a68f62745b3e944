# SPDX-License-Identifier: BSD-3-Clause
"""Products with a coded matrix, which are linear layers."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.passes import linear
from tests.graph.adoption.cases import A, adopted, graph_of
from tests.graph.passes.nets import exported, names, same_after
from tests.graph.pt2e.flow import through_pt2e

X, F32 = torch.randn(5, 8), torch.float32


class Product(nn.Module):
    """addmm or mm with a weight in codes."""

    def __init__(self, product, turned: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        q = bs.quantize(torch.randn(6, 8), "int8:channel0:pow2/nearest")
        self.register_buffer("codes", q.codes)
        self.register_buffer("scale", q.scale)
        self.register_buffer("bias", torch.randint(-9, 9, (6,)).float())
        self.product, self.turned = product, turned

    def forward(self, x: Tensor) -> Tensor:
        fmt = "int8:channel0:pow2/nearest"
        w = torch.ops.blockscale.dequantize(self.codes, self.scale, None, None, fmt, 8, F32)
        return self.product(self.bias, x, w.t().contiguous() if self.turned else w)


@pytest.mark.parametrize(
    ("product", "turned", "count"),
    [
        (torch.addmm, True, 1),
        (lambda b, x, w: torch.mm(x, w), True, 1),
        (lambda b, x, w: torch.addmm(b, x, w, alpha=2), True, 0),
        (lambda b, x, w: torch.addmm(b[:1], x, w), True, 0),
        (lambda b, x, w: torch.mm(x[:, :6], w), False, 0),
    ],
)
def test_products(product, turned, count) -> None:
    graph = exported(Product(product, turned), X)
    whole = X.mul(8).round()  # so that sums are exact
    assert same_after(graph, (linear,), whole, whole[:2]) == {"linear": count}
    assert names(graph).count("aten.linear.default") == count


@pytest.mark.slow
def test_gpt2_through_pt2e_has_linear_layers_of_codes_alone() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, eos_token_id=1, bos_token_id=1, use_cache=False)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = transformers.GPT2Model(config)

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(ids).last_hidden_state

    ids = torch.randint(0, 50, (2, 8))
    skip = {"model.wte": None, "model.wpe": None}
    recipe = bs.Recipe("bfp8", "bfp8", rules=skip)
    with torch.no_grad():
        converted = through_pt2e(Last().eval(), recipe, [(ids,)])
        fused = bs.graph.fuse(converted)
        found = [name for name in names(fused) if "linear" in name or "mm" in name]
        assert found == ["blockscale.fused_linear.default"] * 4
        assert not [name for name in names(fused) if "blockscale.dequantize" in name]
        torch.testing.assert_close(fused(ids), converted(ids))


def test_a_matrix_that_others_quantized() -> None:
    """[inputs, outputs] with a scale for each output."""
    torch.manual_seed(0)
    codes = torch.randint(-128, 128, (8, 6), dtype=torch.int8)
    scale = 2.0 ** torch.randint(-9, -5, (6,))

    def model(x, codes, scale):
        w = A.dequantize_affine(codes, [8, 1], scale, None, torch.int8)
        return torch.addmm(torch.ones(6), x, w)

    x = torch.randint(-9, 9, (3, 8)).float()
    graph = graph_of(model, x, free=False, codes=codes, scale=scale)
    assert [t.shape for t in adopted(graph).buffers() if t.dtype == torch.int8] == [(6, 8)]
    assert torch.equal(adopted(graph)(x), graph(x))
    fused = bs.graph.fuse(graph)
    assert "blockscale.fused_linear.default" in names(fused)
    assert torch.equal(fused(x), graph(x))
