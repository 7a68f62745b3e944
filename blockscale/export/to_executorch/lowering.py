# SPDX-License-Identifier: BSD-3-Clause
"""A graph of torch's ops -> ExecuTorch's program, with XNNPACK where it has kernels."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from blockscale.graph.nodes import aten, each_call, set_value
from blockscale.graph.program import exported

# Op families of XNNPACK's partitioner that pay for the way there and back. Chains of small
# element-wise ops stay with the portable kernels: its search for partitions is quadratic in them.
_FAMILIES = (
    "Linear", "Convolution", "Addmm", "MM", "BMM", "Softmax", "Gelu", "Tanh", "Sigmoid",
    "Hardswish", "MaxPool2d", "AvgPooling", "BatchNorm", "ReLU", "LeakyReLU", "Prelu",
    "UpsampleBilinear2d", "QuantizedPerTensor", "DeQuantizedPerTensor", "QuantizeAffine",
    "DeQuantizeAffine", "ChooseQParamsAffine",
)  # fmt: skip
_MODULES = ("nn_module_stack", "source_fn_stack", "torch_fn", "stack_trace")
_DEPTH = 20_000  # the partitioner calls itself once for each op of a chain


class LeftError(ValueError):
    """XNNPACK did not take all nodes that it alone can run."""


def lowered(graph: fx.GraphModule) -> bytes:
    """The file's bytes. Raises LeftError that names ops without kernels; executorch's own."""
    with _quiet():
        from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

        _settle(graph)
        program = exported(graph)
        for node in program.graph.nodes:
            for key in _MODULES:  # XNNPACK takes whatever lies in an nn.Linear for a linear layer
                node.meta.pop(key, None)
        configs = [c for c in ALL_PARTITIONER_CONFIGS if c.__name__[:-6] in _FAMILIES]
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[XnnpackPartitioner(configs=configs)],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        _check(edge.exported_program())
        return bytes(edge.to_executorch().buffer)


def _settle(graph: fx.GraphModule) -> None:
    """Let strides not depend on how torch takes attention apart: views of others would fail."""
    for node in each_call(graph, aten.scaled_dot_product_attention):
        with graph.graph.inserting_after(node):
            settled = graph.graph.call_function(
                aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        set_value(settled)
        node.replace_all_uses_with(settled)
        settled.replace_input_with(settled, node)
    for node in each_call(graph, aten.view):
        node.target = aten.reshape.default
    graph.recompile()


def _check(program: Any) -> None:
    """Raises LeftError for quantize and dequantize nodes that XNNPACK left: they have no kernel."""
    left = {
        str(node.target).rpartition(".")[0].rpartition(".")[2]
        for node in program.graph.nodes
        if node.op == "call_function" and "quantized_decomposed" in str(node.target)
    }
    if left:
        raise LeftError(f"XNNPACK did not take {', '.join(sorted(left))}")


@contextmanager
def _quiet() -> Iterator[None]:
    """executorch's warnings and logs are about itself; long chains need a deeper stack."""
    depth, level = sys.getrecursionlimit(), logging.root.manager.disable
    sys.setrecursionlimit(max(depth, _DEPTH))
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        sys.setrecursionlimit(depth)
