# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that a graph holds: found by node, put under dotted names, dropped when nothing reads
them. The graph's own modules are changed, never the tensors, which other models may share."""

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from blockscale.core.torch_private import FakeTensor
from blockscale.core.untrusted import kind_of
from blockscale.graph.nodes import SCOPE


def is_constant(node: object) -> bool:
    """Whether the node reads a tensor that the graph holds."""
    return isinstance(node, fx.Node) and node.op == "get_attr"


def get(graph: fx.GraphModule, node: fx.Node) -> Tensor:
    """The tensor that a get_attr node reads. Raises ValueError for other nodes and no tensor."""
    if not is_constant(node):
        raise ValueError(f"expected a node that reads a constant, found {node.format_node()}")
    value: object = graph
    for name in str(node.target).split("."):
        value = getattr(value, name)
    if not isinstance(value, Tensor):
        raise ValueError(f"{node.target}: expected a tensor, found {kind_of(value)}")
    return value


def put_constant(graph: fx.GraphModule, name: str, tensor: Tensor, *, like: fx.Node) -> fx.Node:
    """A node that reads `tensor`, which becomes a buffer of the graph under the dotted name.

    Where a node still reads a tensor on the way, or a module is in the place, `_1`, `_2`, … is
    added to that part of the name; a tensor that nothing reads gives way. The node stands before
    all others, with the layer and source line of `like`.
    """
    owner, path = place(graph, name)
    owner.register_buffer(path.rpartition(".")[2], tensor.detach())
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        node = graph.graph.get_attr(path)
    node.meta.update({key: like.meta[key] for key in SCOPE if key in like.meta})
    _set_value(graph, node, tensor.detach())
    return node


def place(graph: fx.GraphModule, name: str) -> tuple[nn.Module, str]:
    """The module that can hold something under a dotted name, and the whole name, which is free.

    `_1`, `_2`, … is added to a part of the name where a node reads what lies there, and where the
    part is an attribute of the module itself: `to`, `type`, `forward`. Modules on the way are made;
    a tensor that nothing reads gives way.
    """
    owner: nn.Module = graph
    path, parts = "", name.split(".")
    for i, target in enumerate(parts):
        last = i + 1 == len(parts)
        part = _free(graph, owner, path, target, last=last)
        path = f"{path}.{part}".lstrip(".")
        if _holds(owner, part):
            delattr(owner, part)
        if last:
            break
        if not hasattr(owner, part):
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    return owner, path


def same(graph: fx.GraphModule, a: fx.Node | None, b: fx.Node | None) -> bool:
    """Whether two nodes are one, or read constants of equal bits, dtype and shape."""
    if a is b:
        return True
    if not (is_constant(a) and is_constant(b)):
        return False
    assert a is not None and b is not None
    return equal_bits(get(graph, a), get(graph, b))


def equal_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the bit: -0 is not 0, and a NaN is itself."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    if a.dtype.is_complex or a.is_meta:
        return False
    return torch.equal(
        *(
            t.detach().contiguous().view(torch.uint8)
            if t.ndim
            else t.detach().reshape(1).view(torch.uint8)
            for t in (a, b)
        )
    )


def drop_unused(graph: fx.GraphModule) -> int:
    """Drop get_attr nodes without users, tensors that no node reads, and modules left empty.

    Returns how many nodes and tensors went. Modules that the graph calls keep their tensors.
    """
    count = 0
    for node in list(graph.graph.nodes):
        if is_constant(node) and not node.users:
            graph.graph.erase_node(node)
            count += 1
    read = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    modules = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"}
    tensors = [n for n, _ in graph.named_parameters(remove_duplicate=False)]
    tensors += [n for n, _ in graph.named_buffers(remove_duplicate=False)]
    names = read | modules
    for name in tensors:
        if name not in names and not any(whole in names for whole in _above(name)):
            path, _, last = name.rpartition(".")
            delattr(graph.get_submodule(path), last)
            count += 1
    _drop_empty(graph, "", names)
    return count


def _free(graph: fx.GraphModule, owner: nn.Module, path: str, part: str, last: bool) -> str:
    """`part`, or the first of `part_1`, … that may stand in `owner`, which lies at `path`."""
    read = {str(n.target) for n in graph.graph.nodes if n.op in ("get_attr", "call_module")}
    name, count = part, 0
    while True:
        full, result = f"{path}.{name}".lstrip("."), getattr(owner, name, None)
        module = isinstance(result, nn.Module) and not last
        free = _holds(owner, name) or not hasattr(owner, name)
        if module or (free and full not in read):
            return name
        count += 1
        name = f"{part}_{count}"


def _holds(owner: nn.Module, name: str) -> bool:
    """Whether a parameter or buffer of this name is registered, None included."""
    return name in owner._parameters or name in owner._buffers


def _above(name: str) -> Iterator[str]:
    """The names of the modules that something lies in: a, a.b of a.b.c."""
    steps = name.split(".")
    return (".".join(steps[:count]) for count in range(1, len(steps)))


def _set_value(graph: fx.GraphModule, node: fx.Node, tensor: Tensor) -> None:
    values = (each.meta.get("val") for each in graph.graph.nodes)
    fake = next((each for each in values if isinstance(each, FakeTensor)), None)
    if fake is not None:
        node.meta["val"] = fake.fake_mode.from_tensor(tensor, static_shapes=True)


def _drop_empty(module: nn.Module, path: str, names: set[str]) -> None:
    """Drop the plain modules below that hold nothing any more."""
    for name, child in list(module.named_children()):
        inside = f"{path}.{name}" if path else name
        if inside in names:
            continue
        _drop_empty(child, inside, names)
        holds = child._parameters or child._buffers or child._modules
        if type(child) is nn.Module and not holds:
            delattr(module, name)
