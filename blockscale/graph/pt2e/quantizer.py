# SPDX-License-Identifier: BSD-3-Clause
"""A Recipe as torchao's annotations: which edges of a program are quantized, and how.

Layers are found, named and planned as in every flow of ours (blockscale.graph.layers,
blockscale.layers.plan), so that a rule means the same here.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import (  # type: ignore[import-untyped]
    QuantizationSpec,
    Quantizer,
)

from blockscale.calibration import observers
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.graph.edges import places
from blockscale.graph.layers import with_layers
from blockscale.graph.nodes import described
from blockscale.graph.pt2e.annotations import Annotations, Edge
from blockscale.graph.pt2e.edges import Fake, Place, Watch
from blockscale.layers.bias import without_dynamic
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Decision, Plan, plan_layers
from blockscale.layers.supplied import supplied

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
        twin, plans = self._planned(model)
        supplied(plans)  # raises for formats that cannot choose a scale
        calls = {n.meta[_ORIGIN]: n for n in twin.graph.nodes if n.op == "call_module"}
        by_layer = {name: plan for plan in plans for name in plan.names}
        entries = [_entry(plan) for plan in plans] + list(plan_others(twin, plans, self.recipe))
        asked = Annotations(self.spec)
        for node in list(model.graph.nodes):
            call = calls.get(node.name)
            plan = by_layer.get(str(call.target)) if call is not None else None
            if isinstance(plan, Plan):
                asked.layer(model, node, plan)
        found, unused = places(model, self.recipe)
        for place in found:
            entries.append(asked.op(place))
        names = [e.name for e in entries] + [name for plan in plans for name in plan.names]
        unmatched = [p for p in self.recipe.unmatched(names) if not p.startswith("op:")] + unused
        notes = self.recipe.uncalibrated(_OBSERVED)[1]
        self.ledger = Ledger(entries, tuple(unmatched), notes=notes)
        self._biases = asked.biases
        asked.write()
        self.ledger.warn()
        return model

    def _planned(self, model: fx.GraphModule) -> tuple[fx.GraphModule, list[Decision]]:
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
                        f"{described(node)}: prepare_qat_pt2e cannot train a batch norm after "
                        "a convolution with blockscale's formats: use bs.prepare_qat, or "
                        "fold it first"
                    )

    def prepare_obs_or_fq_callback(self, model: fx.GraphModule, made: dict[Any, Any]) -> None:
        """Give each bias in steps of sums the observer of its layer's input."""
        del model
        for bias, x in self._biases:
            made[bias].links = (made[x],)

    def spec(self, place: Place) -> QuantizationSpec:
        """torchao's spec of one edge."""
        kind = Fake if self.qat else Watch
        return QuantizationSpec(torch.uint8, kind.with_args(place=place, spec=self.observer))


def _entry(plan: Decision) -> Entry:
    """What the ledger says of a layer before it is converted."""
    if not isinstance(plan, Plan):
        return plan.entry
    scheme = plan.scheme
    taken = scheme.input if plan.kind.takes_input else None
    return replace(
        plan.entry,
        weight=str(plan.format),
        input=str(taken or ""),
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
