# SPDX-License-Identifier: BSD-3-Clause
"""Ops with parameters become calls of the layers they came from, and those layers are torch's own.

An exported program has `linear(x, encoder.fc.weight, encoder.fc.bias)`. Here it gets an nn.Linear
at `encoder.fc` that holds these parameters, and calls it. So everything that quantizes a model's
layers, or trains them, works on the graph as it is and gives the same bits.
"""

import re
from typing import Any

from torch import fx, nn

from blockscale.graph import kinds
from blockscale.graph.kinds import LayerNode
from blockscale.graph.nodes import scope
from blockscale.graph.pickled import state
from blockscale.layers.kinds import quantized_class


def with_layers(graph: fx.GraphModule, *, training: bool = False) -> tuple[str, ...]:
    """Change the graph so; returns the names of the layers, in the program's order.

    training: batch norms and dropouts become layers as well, which have two modes.
    """
    makers = kinds.TRAINED if training else kinds.QUANTIZED
    calls: list[tuple[fx.Node, LayerNode]] = []
    for node in graph.graph.nodes:
        maker = makers.get(node.target) if node.op == "call_function" else None
        result = None if maker is None else maker(graph, node)
        if result is not None:
            calls.append((node, result))
    names: dict[str, nn.Module] = {}
    instead: dict[fx.Node, fx.Node] = {}
    for node, result in calls:
        name = _name(graph, node, result, names)
        if name not in names:
            names[name] = result.module
            _set_module(graph, name, result.module)
        instead[result.last or node] = _call(graph, node, name, result, instead)
    graph.graph.eliminate_dead_code()
    _settle(graph)
    return tuple(names)


def restore_containers(graph: fx.GraphModule) -> None:
    """Give modules their order in the model, and make containers nn.Sequential and nn.ModuleList
    again: copies of graphs forget both.

    Algorithms go through layers in the model's order; layers of such a container follow one
    another, those of other modules stand side by side (calibrate.choose.side_by_side).
    """
    _order(graph)
    stacks = [node.meta.get("nn_module_stack") or {} for node in graph.graph.nodes]
    kinds = {str(name): str(kind) for stack in stacks for name, kind in stack.values()}
    for name, module in list(graph.named_modules()):
        if type(module) is not nn.Module:
            continue
        if kinds.get(name, "").endswith("container.Sequential"):
            module.__class__ = nn.Sequential
        elif name not in kinds and module._modules and all(map(str.isdigit, module._modules)):
            module.__class__ = nn.ModuleList


def _order(graph: fx.GraphModule) -> None:
    places: dict[str, int] = {}
    for i, name in enumerate(state(graph).names):
        steps = name.split(".")
        for count in range(1, len(steps) + 1):
            places.setdefault(".".join(steps[:count]), i)
    for name, module in graph.named_modules():
        inside = f"{name}." if name else ""
        last = len(places)
        children = sorted(module._modules.items(), key=lambda kv: places.get(inside + kv[0], last))
        module._modules.clear()
        module._modules.update(children)


def _name(
    graph: fx.GraphModule, node: fx.Node, layer_node: LayerNode, modules: dict[str, nn.Module]
) -> str:
    """The layer's name: that of the module whose forward it was, else its weight's without
    `.weight`. Calls of one layer share it."""
    inside = re.sub(r"@\d+$", "", scope(node))
    stack: Any = node.meta.get("nn_module_stack") or {}
    kind = str(next(reversed(stack.values()), ("", ""))[1])
    whole = kind.rpartition(".")[2].removesuffix("'>") in layer_node.kinds
    if whole and inside:
        name = inside
    elif layer_node.weight is not None:
        name = re.sub(r"[._]weight$", "", layer_node.weight)
    else:
        name = f"{inside}.{node.name}".lstrip(".")
    base, count = name, 1
    while not _free(graph, name, layer_node, modules):
        count += 1
        name = f"{base}_{count}"
    return name


def _free(graph: fx.GraphModule, name: str, node: LayerNode, modules: dict[str, nn.Module]) -> bool:
    """Whether a layer can have the name: nobody has, or an equal layer."""
    if name in modules:
        return kinds.equal(modules[name], node.module)
    parent, _, child = name.rpartition(".")
    try:
        there = getattr(graph.get_submodule(parent), child, None)
    except AttributeError:
        return True
    # what lies there are the layer's own tensors, in a container that torch.export made
    return there is None or (type(there) is nn.Module and quantized_class(there) is None)


def _set_module(graph: fx.GraphModule, name: str, module: nn.Module) -> None:
    """The module at its dotted name, in containers that are made as needed."""
    holder: nn.Module = graph
    *above, last = name.split(".")
    for step in above:
        inner = getattr(holder, step, None)
        if not isinstance(inner, nn.Module):
            inner = nn.Module()
            holder.add_module(step, inner)
        holder = inner
    if last in holder._modules:
        holder._modules[last] = module  # where it was: the order of layers is the model's
    else:
        holder.add_module(last, module)


def _call(
    graph: fx.GraphModule,
    node: fx.Node,
    name: str,
    layer_node: LayerNode,
    instead: dict[fx.Node, fx.Node],
) -> fx.Node:
    """A call of the layer in the place of the node (and of the views around it).

    instead: {node that is gone: the call in its place}
    """
    last = layer_node.last or node
    with graph.graph.inserting_before(last):
        call = graph.graph.call_module(name, (instead.get(layer_node.x, layer_node.x),))
    call.meta = {**node.meta, "val": last.meta.get("val")}
    last.replace_all_uses_with(call)
    if last is not node:
        graph.graph.erase_node(last)
    if not node.users:
        graph.graph.erase_node(node)
    return call


def _settle(graph: fx.GraphModule) -> None:
    """Nothing is left of parameters that only layers use now, but in them."""
    graph.graph.lint()
    graph.recompile()
