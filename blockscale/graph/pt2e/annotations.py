# SPDX-License-Identifier: BSD-3-Clause
"""What torchao is told of each node: which of its edges get an observer, and which share one."""

from collections.abc import Callable
from typing import Any

from torch import fx
from torchao.quantization.pt2e.quantizer import (  # type: ignore[import-untyped]
    QuantizationAnnotation,
    SharedQuantizationSpec,
)

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.ledger import Entry
from blockscale.graph import kinds
from blockscale.graph.edges import Place as OpPlace
from blockscale.graph.edges import _float_inputs
from blockscale.graph.nodes import arguments, described, op_name
from blockscale.graph.pt2e.edges import Place
from blockscale.layers.plan import Plan

Edge = tuple[fx.Node, fx.Node]


class Annotations:
    """What is to be said of each node.

    spec: makes torchao's spec of an edge
    biases: (the edge of a bias in steps of sums, that of the input whose step it counts in)
    """

    def __init__(self, spec: Callable[[Place], Any]):
        self._spec = spec
        self._inputs: dict[fx.Node, dict[fx.Node, Any]] = {}
        self._outputs: dict[fx.Node, Any] = {}
        self._first: dict[tuple[str, str], Any] = {}  # (layer, part) -> where its observer is
        self.biases: list[tuple[Edge, Edge]] = []

    def layer(self, model: fx.GraphModule, node: fx.Node, plan: Plan) -> None:
        """The edges of one call of a layer."""
        found = kinds.QUANTIZED[node.target](model, node)
        assert found is not None
        w, bias = _operands(node)
        scheme, layout, rank = plan.scheme, plan.layout, plan.parameter.ndim
        if "mm" in str(node.target):
            layout = "transposed"  # these take weights so, whatever the layer has
        settings: dict[str, Any] = {"layout": layout, "rank": rank}
        self._edge(
            (w, node),
            Place("weight", str(plan.format), "", f"the weight of {plan.name}", **settings),
        )
        x = _x_of(node, found)
        if scheme.input is not None and plan.kind.takes_input:
            self._shared(plan.name, "input", x, scheme.input, settings)
        if scheme.output is not None:
            self._shared(plan.name, "output", found.last or node, scheme.output, settings)
        if bias is not None and plan.quantizes_bias:
            kind: Any = scheme.bias
            own = (str(found.weight), str(plan.format))
            where = f"the bias of {plan.name}"
            place = Place("bias", str(kind), str(bias.target), where, layout, rank, own)
            if isinstance(kind, Format):
                place = Place("bias", str(kind), str(bias.target), where)
            self._edge((bias, node), place)
            if isinstance(kind, SumInteger):
                self.biases.append(((bias, node), x))

    def op(self, place: OpPlace) -> Entry:
        """The edges of an op without weights; its entry for the ledger."""
        node, scheme = place.node, place.scheme
        first: Edge | None = None
        for key, x in _float_inputs(node) if scheme.input is not None else ():
            if x in self._inputs.setdefault(node, {}):
                continue  # the op reads one tensor twice
            if first is not None and scheme.shared:
                self._inputs[node][x] = SharedQuantizationSpec(first)
                continue
            where = f"the {key} of {described(node)}"
            name = f"{place.name}.{'inputs' if scheme.shared else key}"
            self._edge((x, node), Place("input", str(scheme.input), name, where))
            first = first or (x, node)
        if scheme.output is not None:
            where = f"the result of {described(node)}"
            spec = Place("output", str(scheme.output), f"{place.name}.output", where)
            self._outputs[node] = self._spec(spec)
        return Entry(
            place.name,
            f"op {op_name(node)}",
            "quantized",
            input=str(scheme.input) if first is not None else "",
            output=str(scheme.output or ""),
            details="inputs share one scale" if scheme.shared else "",
        )

    def _shared(
        self, layer: str, part: str, at: Any, fmt: Format, settings: dict[str, Any]
    ) -> None:
        """An input's or output's edge; calls of one layer share its observer."""
        spec: Any
        if (layer, part) in self._first:
            spec = SharedQuantizationSpec(self._first[layer, part])
        else:
            self._first[layer, part] = at
            name, where = f"{layer}.{part}", f"the {part} of {layer}"
            spec = self._spec(Place(part, str(fmt), name, where, **settings))
        if part == "output":
            self._outputs[at] = spec
        else:
            self._inputs.setdefault(at[1], {})[at[0]] = spec

    def _edge(self, edge: Edge, place: Place) -> None:
        self._inputs.setdefault(edge[1], {})[edge[0]] = self._spec(place)

    def write(self) -> None:
        """Say it. Implicit sharing is off: it would merge edges of one tensor whatever their
        formats are."""
        for node in {**self._inputs, **self._outputs}:
            node.meta["quantization_annotation"] = QuantizationAnnotation(
                self._inputs.get(node, {}),
                self._outputs.get(node),
                allow_implicit_sharing=False,
                _annotated=True,
            )


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The weight and the bias that a layer's node reads."""
    given = arguments(node)
    w = given["mat2"] if "mat2" in given else given["weight"]
    bias = given.get("bias") if "mat2" not in given else given["self"] if "mat1" in given else None
    return w, bias


def _x_of(node: fx.Node, found: kinds.LayerNode) -> Edge:
    """The edge on which a layer's input is quantized: before the view of it, if only the layer
    reads that."""
    given = arguments(node)
    name = next((n for n in ("mat1", "input", "indices") if n in given), "self")
    x: fx.Node = given[name]
    if found.x is not x and len(x.users) == 1:
        return found.x, x
    return x, node
