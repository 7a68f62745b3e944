# SPDX-License-Identifier: BSD-3-Clause
"""A Recipe as torchao's annotations: which edges of a program are quantized, and how.

Layers are found, named and planned as in every flow of ours (blockscale.graph.layers,
blockscale.layers.plan), so that a rule means the same here.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import (  # type: ignore[import-untyped]
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

from blockscale.calibration import observers
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.graph import kinds
from blockscale.graph.edges import Place as OpPlace
from blockscale.graph.edges import _float_inputs, places
from blockscale.graph.layers import with_layers
from blockscale.graph.nodes import arguments, describe, op_name
from blockscale.graph.pt2e.edges import Fake, Place, Watch
from blockscale.layers.assembly import supplied, without_dynamic
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Decision, Plan, plan_layers

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
        result = kinds.QUANTIZED[node.target](model, node)
        assert result is not None
        w, bias = _operands(node)
        scheme, layout, rank = plan.scheme, plan.layout, plan.parameter.ndim
        if "mm" in str(node.target):
            layout = "transposed"  # these take weights so, whatever the layer has
        settings: dict[str, Any] = {"layout": layout, "rank": rank}
        self._edge(
            (w, node),
            Place("weight", str(plan.format), "", f"the weight of {plan.name}", **settings),
        )
        x = _x_of(node, result)
        if scheme.input is not None and plan.kind.takes_input:
            self._shared(plan.name, "input", x, scheme.input, settings)
        if scheme.output is not None:
            self._shared(plan.name, "output", result.last or node, scheme.output, settings)
        if bias is not None and plan.quantizes_bias:
            kind: Any = scheme.bias
            own = (str(result.weight), str(plan.format))
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
            where = f"the {key} of {describe(node)}"
            name = f"{place.name}.{'inputs' if scheme.shared else key}"
            self._edge((x, node), Place("input", str(scheme.input), name, where))
            first = first or (x, node)
        if scheme.output is not None:
            where = f"the result of {describe(node)}"
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
    inputs = arguments(node)
    w = inputs["mat2"] if "mat2" in inputs else inputs["weight"]
    bias = (
        inputs.get("bias") if "mat2" not in inputs else inputs["self"] if "mat1" in inputs else None
    )
    return w, bias


def _x_of(node: fx.Node, layer: kinds.LayerNode) -> Edge:
    """The edge on which a layer's input is quantized: before the view of it, if only the layer
    reads that."""
    inputs = arguments(node)
    name = next((n for n in ("mat1", "input", "indices") if n in inputs), "self")
    x: fx.Node = inputs[name]
    if layer.x is not x and len(x.users) == 1:
        return layer.x, x
    return x, node


_ORIGIN = "blockscale_origin"


_OBSERVED = "torchao's prepare_pt2e chooses scales by the observer, and nothing else is chosen"


class RecipeQuantizer(Quantizer):
    """See blockscale.graph.pt2e_quantizer. `ledger` is there after prepare_pt2e."""

    def __init__(self, recipe: Recipe, observer: observers.Spec, *, qat: bool):
        observers.check(observer)
        self.recipe, self.observer, self.qat = recipe, observer, qat
        self.ledger = Ledger()
        self._biases: list[tuple[Edge, Edge]] = []  # (a bias, the input whose step it counts in)

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        """The program without dead code, and tensors given by position, which torchao asks for."""
        model.graph.eliminate_dead_code()
        for node in model.graph.nodes:
            if any(isinstance(value, fx.Node) for value in node.kwargs.values()):
                _by_position(node)
        model.recompile()
        return model

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Say on every node what the recipe says. Raises ValueError for formats that do not fit a
        layer, before anything is said."""
        twin, plans = self._plan(model)
        supplied(plans)  # raises for formats that cannot choose a scale
        calls = {n.meta[_ORIGIN]: n for n in twin.graph.nodes if n.op == "call_module"}
        by_layer = {name: plan for plan in plans for name in plan.names}
        entries = [_entry(plan) for plan in plans] + list(plan_others(twin, plans, self.recipe))
        annotations = Annotations(self.spec)
        for node in list(model.graph.nodes):
            call = calls.get(node.name)
            plan = by_layer.get(str(call.target)) if call is not None else None
            if isinstance(plan, Plan):
                annotations.layer(model, node, plan)
        result, unused = places(model, self.recipe)
        for place in result:
            entries.append(annotations.op(place))
        names = [e.name for e in entries] + [name for plan in plans for name in plan.names]
        unused_rules = [p for p in self.recipe.unmatched(names) if not p.startswith("op:")] + unused
        notes = self.recipe.uncalibrated(_OBSERVED)[1]
        self.ledger = Ledger(entries, tuple(unused_rules), notes=notes)
        self._biases = annotations.biases
        annotations.write()
        self.ledger.warn()
        return model

    def _plan(self, model: fx.GraphModule) -> tuple[fx.GraphModule, list[Decision]]:
        """A copy of the program that calls layers, and what is to become of each."""
        for node in model.graph.nodes:
            node.meta[_ORIGIN] = node.name
        tensors = [*model.parameters(), *model.buffers()]
        twin = copy.deepcopy(model, {id(each): each for each in tensors})  # the tensors are shared
        with_layers(twin)
        decisions = plan_layers(twin, self.recipe)
        for decision in decisions:
            if self.qat and isinstance(decision, Plan) and decision.sums_bias:
                raise ValueError(
                    f"{decision.name}: prepare_qat_pt2e cannot train a bias in steps of sums: use "
                    f"bs.prepare_qat, or leave recipe.bias out"
                )
        return twin, without_dynamic(decisions, _is_static)

    def validate(self, model: fx.GraphModule) -> None:
        """Raises ValueError for training with batch norms after convolutions, which torchao would
        unfold around ops that are not its own."""
        if not self.qat:
            return
        for node in model.graph.nodes:
            if node.op == "call_function" and "batch_norm" in str(node.target):
                before = node.args[0]
                if isinstance(before, fx.Node) and "conv" in str(before.target):
                    raise ValueError(
                        f"{describe(node)}: prepare_qat_pt2e cannot train a batch norm after "
                        "a convolution with blockscale's formats: use bs.prepare_qat, or "
                        "fold it first"
                    )

    def prepare_obs_or_fq_callback(self, model: fx.GraphModule, observers: dict[Any, Any]) -> None:
        """Give each bias in steps of sums the observer of its layer's input."""
        del model
        for bias, x in self._biases:
            observers[bias].links = (observers[x],)

    def spec(self, place: Place) -> QuantizationSpec:
        """torchao's spec of one edge."""
        kind = Fake if self.qat else Watch
        return QuantizationSpec(torch.uint8, kind.with_args(place=place, spec=self.observer))


def _entry(plan: Decision) -> Entry:
    """What the ledger says of a layer before it is converted."""
    if not isinstance(plan, Plan):
        return plan.entry
    scheme = plan.scheme
    names = scheme.input if plan.kind.takes_input else None
    return replace(
        plan.entry,
        weight=str(plan.format),
        input=str(names or ""),
        output=str(scheme.output or ""),
        bias=str(scheme.bias) if plan.quantizes_bias else "",
        notes=(f"its bias stays in float: {plan.bias_left}",) if plan.bias_left else (),
    )


def _is_static(plan: Plan) -> bool:
    return plan.scheme.input is not None and plan.scheme.input.block.static


def _by_position(node: fx.Node) -> None:
    """Give a node's named tensors by position, with defaults before them."""
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None:
        return
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in schema.arguments[len(args) :]:
        if argument.kwarg_only or not any(isinstance(v, fx.Node) for v in kwargs.values()):
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    node.args, node.kwargs = tuple(args), kwargs
