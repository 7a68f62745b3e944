# SPDX-License-Identifier: BSD-3-Clause
"""Models of other libraries' quantize and dequantize nodes, and inputs that tell formats apart."""

import copy
import warnings
from collections.abc import Callable

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import Tensor, fx, nn

from blockscale.graph.adoption import adopt
from blockscale.graph.pickled import state
from blockscale.graph.program import import_graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchao.quantization.quant_primitives  # noqa: F401 - registers torchao

D = torch.ops.quantized_decomposed
A = torch.ops.torchao


class Calls(nn.Module):
    """A function of x and the tensors that a graph of it holds."""

    def __init__(self, function: Callable, **tensors: Tensor):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> object:
        return self.function(x, **dict(self.named_buffers()))


def graph_of(function: Callable, x: Tensor, free: bool = True, **tensors: Tensor) -> fx.GraphModule:
    sizes = {"x": {0: torch.export.Dim("rows", min=2)}} if free else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(Calls(function, **tensors), (x,), dynamic_shapes=sizes)
    return import_graph(program)


def adopted(graph: fx.GraphModule) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of copying a graph
        made = copy.deepcopy(graph)
    adopt(made)
    return made


def left(graph: fx.GraphModule) -> list[str]:
    """The foreign nodes that quantize or dequantize."""
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    return [n for n in names if n.startswith(("quantized_decomposed", "torchao"))]


def notes(graph: fx.GraphModule) -> str:
    return "\n".join(text for entry in state(graph).ledger for text in (entry.reason, *entry.notes))


def inputs(
    shape: tuple[int, ...], scale: float, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Normal numbers, ties of this scale, zeros, far out of range, tiny ones."""
    torch.manual_seed(0)
    size = torch.Size(shape).numel()
    ties = (torch.arange(size) - size // 2).float().add(0.5).mul(scale).reshape(shape)
    odd = torch.randn(shape)
    odd.view(-1)[::3] *= 1e30
    odd.view(-1)[1::3] *= 1e-38
    odd.view(-1)[2::7] = -0.0
    return [each.to(dtype) for each in (torch.randn(shape), ties, torch.zeros(shape), odd)]
