# SPDX-License-Identifier: BSD-3-Clause
"""Integer models with marks in the place of their steps, as `take.py` has it for graphs."""

import copy

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from blockscale.export.to_onnx.integer import is_step
from blockscale.export.to_onnx.pieces import Piece, Step, placed
from blockscale.graph.integer.convert import IntegerModel


class _Marked(nn.Module):
    """A step that leaves a mark where it is traced."""

    def __init__(self, name: str, module: nn.Module, pieces: list[Piece]):
        super().__init__()
        self.name, self.module, self.pieces = name, module, pieces

    def forward(self, *given: Tensor) -> Tensor:
        """A mark with the sizes and the dtype of what the step gives."""
        y = self.module(*given)
        self.pieces.append(Step(self.name, self.module, tuple(x.dtype for x in given)))
        first, *more = given
        return placed(len(self.pieces) - 1, first, tuple(y.shape), y.dtype, *more)


def take_integer(model: IntegerModel, pieces: list[Piece]) -> nn.Module:
    """A copy of an integer model that leaves a mark for each step; tracing it fills `pieces`."""
    with torch.no_grad():
        marked = copy.deepcopy(model)
    for name, module in list(marked.steps.named_children()):
        if is_step(module):
            marked.steps.set_submodule(name, _Marked(name, module, pieces))
    return marked.eval()


def without_dead(program: ExportedProgram) -> ExportedProgram:
    """The same without what steps computed while their marks were made, whose checks keep it."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program
