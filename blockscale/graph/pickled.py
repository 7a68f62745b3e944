# SPDX-License-Identifier: BSD-3-Clause
"""Graphs that pickle, so that torch.save and torch.load keep them.

torch writes a GraphModule as its source code and traces that again where it is read, with the
tracer that made it: those of torch.export cannot be made again, and what the nodes know would be
lost. A graph of ours is written as its nodes, with the sizes, dtypes and layers that they know.
"""

import copy
import importlib
import io
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    constant_source,
    pytree,
)
from blockscale.graph.direct import calling

# What a graph of ours knows beside its nodes; it stays with the graph module through copies.

_KEY = "blockscale"


@dataclass
class State:
    """What a step leaves for the next one.

    stage: the step that made the graph: "imported", "prepared", "converted", "fused", "lowered"
    target: what a lowered graph is for; empty before
    ledger: what became of every layer, parameter and node so far
    changes: {pass: how often it changed the graph}
    recipe: what was asked for; None for programs that came quantized
    example: the arguments and keyword arguments that the program was exported with, if it has any
    names: of the program's parameters and buffers, in the model's order
    ranges: {symbol: the sizes it may have}, as torch.export keeps them
    """

    stage: str
    target: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    changes: dict[str, int] = field(default_factory=dict)
    recipe: Recipe | None = None
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ranges: Mapping[Any, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def state(graph: fx.GraphModule) -> State:
    """The graph's state. Raises ValueError for a graph module that no step of ours made."""
    result = graph.meta.get(_KEY) if isinstance(graph, fx.GraphModule) else None
    if not isinstance(result, State):
        raise ValueError(
            "expected a graph that bs.graph.prepare or a later step returned, found a "
            f"{type(graph).__name__}: start with bs.graph.prepare(torch.export.export(...), "
            "recipe)"
        )
    return result


def set_state(graph: fx.GraphModule, state: State) -> None:
    """Make `made` what the graph knows."""
    graph.meta[_KEY] = state


def note(graph: fx.GraphModule, name: str, kind: str, text: str) -> None:
    """Say something of a layer or node in the ledger: a note of its entry, or an entry "kept"."""
    ledger = state(graph).ledger
    for i, entry in enumerate(ledger.entries):
        if entry.name == name:
            if text not in entry.notes:
                ledger.entries[i] = replace(entry, notes=(*entry.notes, text))
            return
    ledger.entries.append(Entry(name, kind, "kept", reason=text))


_NODE = ("name", "op", "target", "args", "kwargs", "type")
_PLAIN = (str, int, float, bool, type(None), type, torch.dtype, torch.device)
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Graph(fx.GraphModule):
    """A GraphModule that pickles, and is called as directly as a call allows (graph.direct).

    Raises what pickle does for a module in it that does not.
    """

    def recompile(self) -> Any:
        """As torch's."""
        result = super().recompile()
        kind: Any = type(self)  # each graph module has a class of its own
        kind.__call__ = calling(kind.__call__, result.src, result.globals)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = dict(self.__dict__)
        graph = attributes.pop("_graph")
        # beside the nodes: they know sizes as well, and torch warns when it reads folded arguments
        apart = {name: attributes.pop(name) for name in _APART if name in attributes}
        nodes = [
            {key: getattr(n, key) for key in _NODE} | {"meta": _picklable(n)} for n in graph.nodes
        ]
        stream = io.BytesIO()
        _Pickler(stream).dump((nodes, graph._codegen, apart))
        return _restore, (_class_of(self), attributes, stream.getvalue())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Graph":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # as in _restored
            graph: Graph = super().__deepcopy__(memo)  # type: ignore[assignment]
            rest = vars(self).keys() - vars(graph).keys()  # torch copies what the nodes name
            vars(graph).update({name: copy.deepcopy(vars(self)[name], memo) for name in rest})
        return graph


_APART = ("meta", "_in_spec", "_out_spec", "_tracer_cls", "_tracer_extras")


def _class_of(graph: Graph) -> type[Graph]:
    """Each GraphModule has a class of its own; the one in a module that it is of."""
    kinds = (kind for kind in type(graph).__mro__ if "GraphModuleImpl" not in kind.__qualname__)
    result: type[Graph] = next(kinds)
    return result


def _picklable(node: fx.Node) -> dict[str, Any]:
    """What a node knows that means something elsewhere: plain data, tensors' sizes and dtypes."""
    return {key: value for key, value in node.meta.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, FakeTensor):
        return all(map(_is_plain, (*value.shape, *value.stride())))
    if isinstance(value, _SIZES):
        return value.node.hint is not None  # a size that only data tell has none
    return isinstance(value, _PLAIN)


class _Pickler(pickle.Pickler):
    """Nodes, ops, sizes that are free and tensors without storage, each by what says it."""

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        if isinstance(obj, fx.Node):
            return "node", obj.name
        if isinstance(obj, OpOverload):
            return "op", obj.namespace, obj._schema.name.partition("::")[2], obj._overloadname
        if isinstance(obj, HigherOrderOperator):
            return "higher", obj.name()
        if isinstance(obj, type):
            return "type", obj.__module__, obj.__qualname__
        if isinstance(obj, FakeTensor):
            info = (tuple(obj.shape), obj.stride(), obj.dtype, str(obj.device), obj.requires_grad)
            return "fake", *info
        if isinstance(obj, _SIZES):
            return "size", obj.node.expr, obj.node.hint, _hints(obj)
        return None


def _hints(size: Any) -> dict[Any, tuple[int, Any]]:
    """{symbol of a size: (what it was in the example, the range that it may have)}."""
    shapes = size.node.shape_env
    values = getattr(shapes, "backed_var_to_val", None) or shapes.var_to_val
    return {s: (int(values[s]), shapes.var_to_range.get(s)) for s in size.node.expr.free_symbols}


class _Reader:
    """What was read so far: nodes by name, and symbols, which get new names."""

    def __init__(self) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # it imports sympy

        self.nodes: dict[str, fx.Node] = {}
        self.symbols: dict[Any, Any] = {}
        self.shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)

    def size(self, term: Any, hint: Any, hints: Mapping[Any, tuple[int, Any]]) -> Any:
        """A free size again."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        for symbol, (value, limits) in hints.items():
            if symbol not in self.symbols:
                source = constant_source(str(symbol))
                new = self.shapes.create_symbol(
                    value, source, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
                )
                self.symbols[symbol] = new
                if limits is not None:
                    self.shapes.var_to_range[new] = limits
        return self.shapes.create_symintnode(term.xreplace(self.symbols), hint=hint)

    def fake(self, shape: Any, stride: Any, dtype: Any, device: str, grad: bool) -> Tensor:
        """A tensor without storage again."""
        with self.mode:
            result = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return result.requires_grad_(grad)


class _NodeRef:
    """A node by its name, until it is there."""

    def __init__(self, name: str):
        self.name = name


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, reader: _Reader):
        super().__init__(stream)
        self._reader = reader

    def persistent_load(self, pid: Any) -> Any:
        kind, *note = pid
        if kind == "node":
            return _NodeRef(*note)
        if kind == "op":
            space, name, overload = note
            return getattr(getattr(getattr(torch.ops, space), name), overload or "default")
        if kind == "higher":
            return getattr(torch.ops.higher_order, note[0])
        if kind == "type":
            return _type(*note)
        return self._reader.fake(*note) if kind == "fake" else self._reader.size(*note)


def _type(module: str, name: str) -> Any:
    """A class by its name; the name alone where it cannot be imported."""
    try:
        value: Any = importlib.import_module(module)
        for each in name.split("."):
            value = getattr(value, each)
    except (ImportError, AttributeError):
        return f"{module}.{name}"
    return value


def _restore(kind: type[Graph], attributes: dict[str, Any], stored: bytes) -> Graph:
    """What `Graph.__reduce__` took apart."""
    import blockscale.ops.op  # noqa: F401 - the ops have to be known

    reader = _Reader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a class that torch folds arguments with
        nodes, codegen, apart = _Unpickler(io.BytesIO(stored), reader).load()
    graph = fx.Graph()
    for note in nodes:
        args, kwargs = pytree.tree_map_only(
            _NodeRef, lambda each: reader.nodes[each.name], (note["args"], note["kwargs"])
        )
        node = graph.create_node(
            note["op"], note["target"], args, kwargs, note["name"], note["type"]
        )
        reader.nodes[note["name"]], node.meta = node, note["meta"]
    graph._codegen = codegen
    result = kind(torch.nn.Module(), fx.Graph())
    result.__dict__.update(attributes | apart)
    result.graph = graph
    entry = result.meta.get("blockscale")
    if entry is not None and entry.ranges:
        entry.ranges = {reader.symbols.get(s, s): limits for s, limits in entry.ranges.items()}
    return result
