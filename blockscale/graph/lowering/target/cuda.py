# SPDX-License-Identifier: BSD-3-Clause
"""Our CUDA kernels; the graph's tensors move to the current CUDA device."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from blockscale.core.torch_private import pytree
from blockscale.graph.lowering.kernels import kernel_way, misses
from blockscale.graph.lowering.products.product import inside, parts_of, rewrite
from blockscale.graph.lowering.way import Way, of_ours, way
from blockscale.kernels.registry import unavailable as _unavailable


def unavailable() -> str | None:
    """Why our CUDA kernels do not run here, or None."""
    if not torch.cuda.is_available():  # then Triton's interpreter may run the kernels, on the CPU
        return "torch sees no CUDA device"
    return _unavailable("cuda")


def supports(node: fx.Node) -> str | None:
    """Why no kernel of ours runs the node, or None."""
    return misses(node, "cuda") if of_ours(node) is not None else None


def run(graph: fx.GraphModule) -> list[Way]:
    """Move everything to the device; ops find their kernels there when they are called."""
    move(graph, torch.device("cuda", torch.cuda.current_device()))
    return choose(graph)


def choose(graph: fx.GraphModule) -> list[Way]:
    """A way for each node of ours. Linear layers go through the kernels of `linear`, which take
    floats and quantize them, where the floats that x was quantized from are at hand."""
    ways = []
    for node in [each for each in graph.graph.nodes if of_ours(each) is not None]:
        parts = parts_of(node)
        if parts is None or not parts.fused or inside(parts, "cuda") is not None:
            ways.append(kernel_way(node, "cuda"))
            continue
        what = "quantizes its input" if parts.x.fmt else "takes floats"
        ways.append(way(node, "inside", f"our kernel of linear, which {what}"))
        rewrite(graph, parts, "inside", {})
    graph.graph.eliminate_dead_code()  # what quantized the inputs before
    return ways


def move(graph: fx.GraphModule, device: torch.device) -> None:
    """The graph's tensors, the devices that its nodes name and its fake tensors go to `device`."""
    for module in graph.modules():  # not graph.to, which changes tensors that others share
        for name, tensor in module._parameters.items():
            if tensor is not None:
                parameter = nn.Parameter(tensor.detach().to(device), requires_grad=False)
                module._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)

    def to_device(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, to_device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, to_device)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map_only(
                Tensor, lambda each: each.to(device), node.meta["val"]
            )
