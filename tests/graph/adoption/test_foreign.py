# SPDX-License-Identifier: BSD-3-Clause
"""Whole programs that torchao's own quantizers made, taken over to the bit."""

import copy
import warnings
from functools import cache

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.foreign import schema_name
from blockscale.graph.qparams import QuantParams
from tests.graph.adoption.cases import adopted, graph_of, left
from tests.graph.pt2e.flow import exported
from tests.support.op_samples import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    for _ in range(3):
        net(torch.randn(8, 3, 6, 6))
    return net.eval()


@cache
def program() -> torch.fx.GraphModule:
    return exported(model(), (torch.zeros(4, 3, 6, 6),))


def converted(dynamic: bool, fold: bool = True):
    """What torchao's X86InductorQuantizer makes of it."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    )
    batch = torch.randn(4, 3, 6, 6)
    prepared = prepare_pt2e(copy.deepcopy(program()), quantizer)
    prepared(batch)
    return convert_pt2e(prepared, fold_quantize=fold), batch


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_convert_pt2e_gives(dynamic: bool, fold: bool) -> None:
    graph, batch = converted(dynamic, fold)
    with warnings.catch_warnings(), bs.use("reference"), torch.no_grad():
        expected = [bits(graph(x)) for x in (batch, batch[:2] * 3)]
        made = adopted(graph)
        assert [bits(made(x)) for x in (batch, batch[:2] * 3)] == expected
    assert not [name for name in left(made) if "choose_qparams" not in name]
    names = dict(made.named_buffers())
    for layer in ("5", "7") if dynamic else ("0", "3", "5", "7"):
        assert names[f"{layer}.weight.codes"].dtype == torch.int8, sorted(names)
        scale = names[f"{layer}.weight.scale"]
        assert scale.ndim == names[f"{layer}.weight.codes"].ndim
        assert scale.shape[0] == scale.numel()
    assert not any(n.endswith("weight") for n, _ in made.named_parameters() if n[0] in "57")
    for node in made.graph.nodes:
        if "blockscale.dequantize" in str(node.target):
            params = QuantParams.of(node)  # each scale fits its format and its tensor
            assert params.is_per_tensor or params.channel_axis == 0


def test_fuse_takes_it() -> None:
    graph, batch = converted(False)
    with bs.use("reference"), torch.no_grad():
        expected = bits(graph(batch))
        fused = bs.graph.fuse(graph)
        assert bits(fused(batch)) == expected
    assert not left(fused)


def test_fuse_takes_what_our_quantizer_gave() -> None:
    from tests.graph.pt2e.flow import through_pt2e

    batch = torch.randn(4, 3, 6, 6)
    with bs.use("reference"), torch.no_grad():
        graph = through_pt2e(model(), bs.Recipe("int8_channel", "uint8"), [(batch,)])
        expected = bits(graph(batch))
        fused = bs.graph.fuse(graph)
        assert bits(fused(batch)) == expected
    assert not any(n.endswith("weight") for n, _ in fused.named_parameters() if n[0] in "0357")


def test_a_float_graph_stays() -> None:
    graph = graph_of(lambda x: torch.relu(x) + 1, torch.randn(3, 4))
    before = str(adopted(graph).graph)
    assert before == str(graph.graph)


def test_names_of_schemas() -> None:
    graph = graph_of(lambda x: torch.relu(x) + 1, torch.randn(3, 4))
    assert [schema_name(n) for n in graph.graph.nodes] == ["", "aten::relu", "aten::add.Tensor", ""]
