# SPDX-License-Identifier: BSD-3-Clause
"""Edges of ops without weights that a recipe's rules give a format: `op:softmax`."""

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from blockscale.calibration.observers import Observer, Spec, make
from blockscale.calibration.padding import without_padding
from blockscale.core.format import Format
from blockscale.core.ledger import Entry
from blockscale.core.recipe import Recipe
from blockscale.core.rules import OpScheme
from blockscale.graph import constants
from blockscale.graph.nodes import describe, op_name, scope
from blockscale.layers.saturation import lost_signs
from blockscale.layers.store import QInput


class Edge(QInput):
    """A tensor between two ops, on its way through a format.

    Until it is settled it lets tensors pass, and an observer looks at them where the scale is to
    be static; then it quantizes. With `fake` it quantizes from the first tensor on, for training.

    where: what it belongs to, as errors name it
    """

    def __init__(self, fmt: Format, observer: Observer | None, where: str, *, fake: bool = False):
        super().__init__(fmt)
        self.where, self.fake = where, fake
        self.observer = observer
        self.is_settled = observer is None and fake
        self.observing = self.quantizing = True  # as layers in training have them: bs.qat.switch

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> x, or what the format leaves of it."""
        if self.is_settled and self.quantizing:
            return super().forward(x)
        if self.observer is not None and self.observing and (self.training or not self.fake):
            self.observer.observe(without_padding(x.detach()))
        if not self.fake or not self.quantizing or not (self.ready or x.numel()):
            return x  # without rows there is nothing to scale
        self.settle()
        quantized = super().forward(x)
        self.is_settled = False
        return quantized

    @property
    def ready(self) -> bool:
        """Whether there is a scale, or none is needed."""
        return self.observer is None or bool(self.observer.finite)

    def settle(self) -> None:
        """Quantize from now on. Raises ValueError if the scale is static and nothing was seen."""
        if self.observer is not None:
            parts = self.observer.qparams()._asdict()
            self.restore({k: v for k, v in parts.items() if v is not None})
        self.is_settled = True

    def notes(self) -> list[str]:
        """What a user should know of what was seen."""
        observer = self.observer
        if observer is None:
            return []
        odd = {"NaN": int(observer.nans), "infinite": int(observer.infinities)}
        lines = [
            f"{n} {kind} of {int(observer.samples)} values, left out"
            for kind, n in odd.items()
            if n
        ]
        return lines + (
            lost_signs(self.where, observer.low, observer.format) if observer.finite else []
        )


@dataclass
class Place:
    """An op that a rule covers: its node, the name it goes by, and what the rule asks for."""

    node: fx.Node
    name: str
    scheme: OpScheme


def places(graph: fx.GraphModule, recipe: Recipe) -> tuple[list[Place], list[str]]:
    """The ops that the recipe's rules cover, and the patterns for ops that cover none."""
    members: list[Place] = []
    matches: set[str | None] = set()
    names: Counter[str] = Counter()
    for node in graph.graph.nodes:
        if not _is_op(node):
            continue
        op, inside = op_name(node), scope(node)
        scheme, pattern = recipe.decide_op(op, inside)
        is_given = scheme.input is not None and any(True for _ in _float_inputs(node))
        if not is_given and not _float_outputs(node):
            continue  # an op on integers alone
        matches.add(pattern)
        if scheme:
            base = f"{inside}.{op}".lstrip(".")
            names[base] += 1
            name = base if names[base] == 1 else f"{base}_{names[base]}"
            members.append(Place(node, name, scheme))
    patterns = [p for p in (*recipe.op_rules, *recipe.skip) if p.startswith("op:")]
    return members, [p for p in patterns if p not in matches]


def put_edges(
    graph: fx.GraphModule, places: list[Place], observer: Spec, *, fake: bool = False
) -> Iterator[Entry]:
    """Put an Edge on every input and the output that a rule asks for; an entry for each op."""
    for place in places:
        scheme, node = place.scheme, place.node
        inputs = [] if scheme.input is None else list(_float_inputs(node))
        shared: Edge | None = None
        for key, source in inputs:
            assert scheme.input is not None
            if shared is None or not scheme.shared:
                shared = _edge(scheme.input, observer, f"the {key} of {describe(node)}", fake)
            name = f"{place.name}.{'inputs' if scheme.shared else key}"
            edge = _insert(graph, name, shared, source, node)
            _replace(node, key, edge)
        results = [] if scheme.output is None else _float_outputs(node)
        for key, nodes in results:
            assert scheme.output is not None
            edge_of = _edge(scheme.output, observer, f"the result of {describe(node)}", fake)
            readers = [(each, user) for each in nodes for user in each.users]
            after = _insert(graph, f"{place.name}.{key}", edge_of, min(nodes), None)
            for each, user in readers:
                user.replace_input_with(each, after)
        none = not inputs and not results
        yield Entry(
            place.name,
            f"op {op_name(node)}",
            "kept" if none else "quantized",
            reason="its rule sets a format for inputs, and it has no float input" if none else "",
            input=str(scheme.input or "") if inputs else "",
            output=str(scheme.output or "") if results else "",
            details="inputs share one scale" if scheme.shared else "",
        )
    graph.graph.lint()
    graph.recompile()


def _edge(fmt: Format, observer: Spec, where: str, fake: bool) -> Edge:
    """The Edge of a format: observed where its scale can be known beforehand, else dynamic."""
    return Edge(fmt, make(observer, fmt) if fmt.block.static else None, where, fake=fake)


def _insert(
    graph: fx.GraphModule, name: str, edge: Edge, source: fx.Node, before: fx.Node | None
) -> fx.Node:
    there = next((each for each, module in graph.named_modules() if module is edge), None)
    if there is None:  # otherwise it is shared with an input before
        holder, there = constants.place(graph, name)
        holder.add_module(there.rpartition(".")[2], edge)
    at = (
        graph.graph.inserting_after(source)
        if before is None
        else graph.graph.inserting_before(before)
    )
    with at:
        call = graph.graph.call_module(there, (source,))
    call.meta = dict(source.meta if before is None else before.meta) | {
        "val": source.meta.get("val")
    }
    return call


def _is_op(node: fx.Node) -> bool:
    """Whether it computes tensors, one or several. What takes one out of several is no op of its
    own, and sizes and assertions are none either."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    value = node.meta.get("val")
    whole = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, Tensor) for each in whole)


def _float_outputs(node: fx.Node) -> list[tuple[str, list[fx.Node]]]:
    """Its float results by name, the nodes of each: `output`; of several, those that are taken out,
    once or more often, by their places: `output_0`."""
    if _is_float(node.meta.get("val")):
        return [("output", [node])]
    names: dict[Any, list[fx.Node]] = {}
    for user in node.users:
        if user.target is operator.getitem and _is_float(user.meta.get("val")):
            names.setdefault(user.args[1], []).append(user)
    return [(f"output_{i}", names[i]) for i in sorted(names)]


def _float_inputs(node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    """The node's float tensors by the schema's names; those of a list are numbered. Parameters of
    the op, such as a norm's weight, are none of them."""
    schema: Any = getattr(node.target, "_schema", None)
    parameters = [a.name for a in schema.arguments] if schema else []
    for i, value in enumerate(node.args):
        name = (
            {"self": "input"}.get(parameters[i], parameters[i])
            if i < len(parameters)
            else f"input_{i}"
        )
        if isinstance(value, list | tuple):
            for j, each in enumerate(value):
                if _is_edge(each):
                    yield f"{name}_{j}", each
        elif _is_edge(value):
            assert isinstance(value, fx.Node)
            yield name, value


def _replace(node: fx.Node, key: str, edge: fx.Node) -> None:
    """Let the node's input of this name (as `_float_inputs` gives it) come from the edge."""
    schema: Any = getattr(node.target, "_schema", None)
    parameters = [a.name for a in schema.arguments] if schema else []
    args = list(node.args)
    for i, value in enumerate(args):
        name = (
            {"self": "input"}.get(parameters[i], parameters[i])
            if i < len(parameters)
            else f"input_{i}"
        )
        if isinstance(value, list | tuple):
            args[i] = [edge if f"{name}_{j}" == key else each for j, each in enumerate(value)]
        elif name == key:
            args[i] = edge
    node.args = tuple(args)


def _is_edge(value: object) -> bool:
    """Whether it is a node that computes, or is given, a float tensor."""
    if not isinstance(value, fx.Node) or value.op == "get_attr":
        return False
    return _is_float(value.meta.get("val"))


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
