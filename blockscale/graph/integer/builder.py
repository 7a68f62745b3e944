# SPDX-License-Identifier: BSD-3-Clause
"""The graph of integer steps while it is being built: what rules read from it and add to it."""

from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from blockscale.graph.integer.layers import Fixed, NotIntegerError, check_fixed
from blockscale.graph.lowering.integers.builder import Sum as Sum


class Value(NamedTuple):
    """A value of the integer graph.

    node: its node in the integer graph
    fixed: what its integers mean; None where it still is floats
    example: what it is for the example input: integers, floats, or a number such as a size
    """

    node: fx.Node
    fixed: Fixed | None
    example: Any


class Builder:
    """The integer graph so far. Nodes that are arguments here are those of the traced model.

    graph, modules: the integer graph and the steps that it calls; sums: of each place that sums
    """

    def __init__(self, model: nn.Module):
        """model: the quantized model that was traced; it is only read."""
        self.graph, self.modules = fx.Graph(), nn.Module()
        self.sums: list[Sum] = []
        self._model = model
        self._values: dict[fx.Node, Value] = {}

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module of the traced model that a node calls, None if it calls none."""
        if node.op != "call_module":
            return None
        return self._model.get_submodule(str(node.target))

    def name(self, node: fx.Node) -> str:
        """A node as error messages tell of it."""
        if (module := self.module(node)) is not None:
            return f"{node.target!r} ({type(module).__name__})"
        target = node.target if isinstance(node.target, str) else node.target.__name__
        return f"{node.name!r} ({target})"

    def remember(self, node: fx.Node, value: Value) -> None:
        """Say what a node of the traced model has become."""
        self._values[node] = value

    def value(self, node: fx.Node) -> Value:
        """What a node of the traced model has become."""
        return self._values[node]

    def inputs(self, node: fx.Node) -> list[Value]:
        """The values that a node takes."""
        return [self._values[each] for each in node.all_input_nodes]

    def argument(self, node: fx.Node, index: int) -> Value:
        """One argument of a node. Raises NotIntegerError for a number."""
        argument = node.args[index]
        if not isinstance(argument, fx.Node):
            raise NotIntegerError(
                f"{self.name(node)} takes {argument!r}, expected a value of the graph"
            )
        return self._values[argument]

    def integers(self, node: fx.Node, value: Value) -> Fixed:
        """What the integers of a value mean that `node` takes. Raises NotIntegerError for none."""
        if value.fixed is None:
            raise NotIntegerError(
                f"{self.name(node)} takes floats: only a quantized layer may take the model's input"
            )
        return value.fixed

    def add_sums(self, node: fx.Node, fixed: Fixed) -> None:
        """Remember how large the sums of a node get. Raises as `check_fixed`."""
        name = self.name(node)
        check_fixed(fixed, f"sums of {name}")
        kind = name.rpartition("(")[2].rstrip(")")
        plain = str(node.target) if node.op == "call_module" else node.name
        self.sums.append(Sum(plain, kind, fixed.largest, fixed.exact))

    def add_step(
        self, node: fx.Node, module: nn.Module, values: list[Value], fixed: Fixed | None
    ) -> Value:
        """A new step of the integer graph, in the place of `node`.

        module: the step, which takes `values`; fixed: what its result means, None for floats.
        """
        name = f"{node.name}_{type(module).__name__.lower()}"
        while hasattr(self.modules, name):
            name += "_"
        self.modules.add_module(name, module)
        new = self.graph.call_module(name, tuple(value.node for value in values))
        return Value(new, fixed, module(*(value.example for value in values)))

    def add_same(self, node: fx.Node, fixed: Fixed | None) -> Value:
        """The traced call as it is, on integers; `fixed`: what its result means."""
        new = self.graph.node_copy(node, lambda each: self._values[each].node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._values[n].example)
        if node.op == "call_method":
            return Value(new, fixed, getattr(args[0], str(node.target))(*args[1:], **kwargs))
        function: Any = node.target
        return Value(new, fixed, function(*args, **kwargs))

    def add_input(self, node: fx.Node, example: Tensor) -> None:
        """An input of the model, floats."""
        self.remember(node, Value(self.graph.placeholder(node.name), None, example))
