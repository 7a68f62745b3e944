"""From a traced quantized model to the graph of its integer steps, one node after the other."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from blockscale.graph.integer import steps
from blockscale.graph.integer.layers import (
    Fixed,
    NotIntegerError,
    check_fixed,
    integer_layer,
    of_quantizer,
)
from blockscale.graph.integer.rules import AS_MODULE, RULES
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QInput


@dataclass(frozen=True)
class Sum:
    """What is known of the sums in one place of an integer model.

    largest: the largest magnitude that any input can give, in steps
    exact: whether float32 computes these sums without rounding, in any order
    """

    name: str
    kind: str
    largest: int
    exact: bool


class Value(NamedTuple):
    """A value of the new graph, what its integers mean (None: it is still floats), an example."""

    node: fx.Node
    fixed: Fixed | None
    example: Any


class Lowering:
    """Builds `graph`, its `modules` and `sums`."""

    def __init__(self, model: nn.Module, example: list[Tensor]):
        self.graph, self.modules = fx.Graph(), nn.Module()
        self.sums: list[Sum] = []
        self._model, self._example = model, example
        self._values: dict[fx.Node, Value] = {}

    def run(self, node: fx.Node) -> None:
        """Lower one node of the traced model. Raises NotIntegerError, which names it."""
        if node.op == "placeholder":
            if not self._example:
                raise TypeError(f"the model has an input {node.target!r}: give an example of it")
            new = self.graph.placeholder(node.name)
            self._values[node] = Value(new, None, self._example.pop(0))
        elif node.op == "output":
            self.graph.output(fx.node.map_arg(node.args[0], self._to_float))
        else:
            self._values[node] = self._lower(node)

    def _lower(self, node: fx.Node) -> Value:
        if node.op == "get_attr":
            raise NotIntegerError(f"{self.name(node)} is a float tensor in the middle of the model")
        if node.args and not any(isinstance(v.example, Tensor) for v in self.inputs(node)):
            return self.same(node, None)  # arithmetic of sizes
        target: Any = node.target
        module = self._model.get_submodule(target) if node.op == "call_module" else None
        if isinstance(module, QLayer):
            return self._layer(node, module)
        if target in AS_MODULE:
            settings = {name: value for name, value in node.kwargs.items() if name != "input"}
            module = AS_MODULE[target](*node.args[1:], **settings)
        rule = RULES.get(type(module) if module is not None else target)
        if rule is None:
            raise NotIntegerError(f"{self.name(node)} has no integer form here")
        return rule(self, node, module)

    def _layer(self, node: fx.Node, layer: QLayer) -> Value:
        name = str(node.target)
        codes = self._quantize(node, self.inputs(node)[0], layer.input, f"the input of {name!r}")
        step, fixed = integer_layer(layer, name)
        sums = self.step(node, step, [codes], fixed)
        self.told(node, fixed)
        if layer.output is None:
            return sums
        return self._quantize(node, sums, layer.output, f"the output of {name!r}")

    def _quantize(self, node: fx.Node, x: Value, quantizer: QInput | None, what: str) -> Value:
        """x in a quantizer's format: by a shift, or from floats if they still are floats."""
        fixed = of_quantizer(quantizer, what)
        assert quantizer is not None
        if x.fixed is None:
            scale, zero_point, _ = quantizer.parts
            assert scale is not None
            return self.step(node, steps.Quantize(quantizer.format, scale, zero_point), [x], fixed)
        points = (x.fixed.zero_point, fixed.zero_point)
        shift = steps.Requantize(fixed.exponent - x.fixed.exponent, quantizer.format, points)
        return self.step(node, shift, [x], fixed)

    def _to_float(self, node: fx.Node) -> fx.Node:
        value = self._values[node]
        if value.fixed is None:
            return value.node
        step = steps.Dequantize(value.fixed.exponent, value.fixed.zero_point)
        return self.step(node, step, [value], None).node

    # what the rules use

    def name(self, node: fx.Node) -> str:
        """A node as error messages tell of it."""
        if node.op == "call_module":
            kind = type(self._model.get_submodule(str(node.target))).__name__
            return f"{node.target!r} ({kind})"
        target = node.target if isinstance(node.target, str) else node.target.__name__
        return f"{node.name!r} ({target})"

    def inputs(self, node: fx.Node) -> list[Value]:
        """The values that a node takes."""
        return [self._values[each] for each in node.all_input_nodes]

    def value(self, node: fx.Node, arg: Any) -> Value:
        """One argument of a node. Raises NotIntegerError for a number."""
        if not isinstance(arg, fx.Node):
            raise NotIntegerError(f"{self.name(node)} takes {arg!r}: only values of the graph do")
        return self._values[arg]

    def told(self, node: fx.Node, fixed: Fixed) -> None:
        """Remember how large these sums get. Raises as `check_fixed`."""
        name = self.name(node)
        check_fixed(fixed, f"sums of {name}")
        kind = name.rpartition("(")[2].rstrip(")")
        plain = str(node.target) if node.op == "call_module" else node.name
        self.sums.append(Sum(plain, kind, fixed.largest, fixed.exact))

    def step(
        self, node: fx.Node, module: nn.Module, values: list[Value], fixed: Fixed | None
    ) -> Value:
        """A new step of the integer graph, in the place of `node`."""
        name = f"{node.name}_{type(module).__name__.lower()}"
        while hasattr(self.modules, name):
            name += "_"
        self.modules.add_module(name, module)
        new = self.graph.call_module(name, tuple(value.node for value in values))
        return Value(new, fixed, module(*(value.example for value in values)))

    def same(self, node: fx.Node, fixed: Fixed | None) -> Value:
        """The traced call as it is, on integers."""
        new = self.graph.node_copy(node, lambda each: self._values[each].node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._values[n].example)
        if node.op == "call_method":
            return Value(new, fixed, getattr(args[0], str(node.target))(*args[1:], **kwargs))
        function: Any = node.target
        return Value(new, fixed, function(*args, **kwargs))
