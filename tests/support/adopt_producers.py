# SPDX-License-Identifier: BSD-3-Clause
"""Models that torch.ao and torchao quantized, as graph modules and as programs."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from blockscale.compat import torch_ao as T
from blockscale.graph.adoption.quantize_fx import from_quantize_fx


class Small(nn.Module):
    """Two convolutions, a linear layer, and what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.two, self.relu2 = nn.Conv2d(8, 8, 3, groups=2), nn.ReLU()
        self.last = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, 3, 6, 6] -> [batch, 5]."""
        x = self.relu2(self.two(self.relu(self.one(x))))
        return self.last(x.flatten(1))


def exact() -> Small:
    """One whose sums are exact in float32 under scales that are powers of two, in any order."""
    model = Small()
    for layer in (model.one, model.two, model.last):
        assert layer.bias is not None
        layer.bias.data = (layer.bias.data * 2**8).round() / 2**8
    return model


def example(rows: int = 2) -> tuple[Tensor]:
    torch.manual_seed(1)
    return (torch.randn(rows, 3, 6, 6),)


def pt2e(model: nn.Module, args: tuple[Tensor, ...], power_of_2: bool = False) -> fx.GraphModule:
    """What convert_pt2e gives with torchao's X86InductorQuantizer."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = x86.get_default_x86_inductor_quantization_config()
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(T.power_of_2(config) if power_of_2 else config)
        graph = prepare_pt2e(torch.export.export(model.eval(), args).module(), quantizer)
        graph(*args)
        return convert_pt2e(graph)


def quantize_fx(
    model: nn.Module, args: tuple[Tensor, ...], backend: str = "x86", power_of_2: bool = False
) -> fx.GraphModule:
    """What torch.ao's prepare_fx gives, after it has seen the arguments."""
    from torch.ao.quantization.quantize_fx import prepare_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapping: Any = T.get_default_qconfig_mapping(backend)
        if power_of_2:
            mapping = T.power_of_2(mapping)
        graph = prepare_fx(copy.deepcopy(model).eval(), mapping, args)
        graph(*args)
        return graph


def program(graph: fx.GraphModule, args: tuple[Tensor, ...]) -> ExportedProgram:
    """The program of either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if any(node.op == "call_module" for node in graph.graph.nodes if node.users):
            return from_quantize_fx(graph, args)
        return torch.export.export(graph, args)


MADE = {"pt2e": pt2e, "quantize_fx": quantize_fx}
