# SPDX-License-Identifier: BSD-3-Clause
"""What torchao's prepare_pt2e puts on edges: an observer of ours, or a fake quantizer.

torchao calls `convert`, which writes the nodes of the quantized edge. It knows an observer by the
class, so these are subclasses of torchao's; the file is imported when it is there.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torchao.quantization.pt2e import (  # type: ignore[import-untyped]
    FakeQuantizeBase,
    ObserverBase,
)

from blockscale.calibration.input_stats import features_last
from blockscale.calibration.observers import Observer, Spec, make
from blockscale.core.arithmetic.sums import SumInteger, sum_steps
from blockscale.core.format import Format
from blockscale.core.operand import FIRST, Quantizer, quantizer
from blockscale.core.pack import from_stored, of_convolution, to_stored
from blockscale.core.parse import parse
from blockscale.core.recipe import read_bias
from blockscale.core.reference import QParams, step_of
from blockscale.graph import constants
from blockscale.graph.adoption.affine import LAYER
from blockscale.graph.expand import quantized
from blockscale.graph.nodes import SCOPE, aten, call, inline
from blockscale.layers.store import QInput, steps_of_outputs
from blockscale.ops import primitives
from blockscale.ops.quantize import quantize

# What stands in a graph for a layer's tensors on their way through a format.
#
# A convolution's input goes through it with its channels last, a weight as the matrix that layers
# store (blockscale.core.pack).


def activation(
    graph: fx.GraphModule, x: fx.Node, by: Quantizer, layout: str, rank: int, *, like: fx.Node
) -> fx.Node:
    """x [...] -> the values that the format leaves of it, in its dtype, written before `like`.

    layout, rank: of the weight of x's layer
    """
    value = x.meta["val"]
    if not of_convolution(layout):
        return quantized(graph, x, by, value.dtype, like)
    channel = value.ndim - rank + 1  # 0 without a batch
    order = [dim for dim in range(value.ndim) if dim != channel] + [channel]
    last = call(graph, aten.permute.default, (x, order), like=like)
    y = quantized(graph, last, by, value.dtype, like)
    back = [order.index(dim) for dim in range(value.ndim)]
    return call(graph, aten.permute.default, (y, back), like=like)


def weight(graph: fx.GraphModule, w: fx.Node, fmt: str, layout: str, *, like: fx.Node) -> fx.Node:
    """The same for a weight, which chooses its scale."""
    shape, dtype = tuple(w.meta["val"].shape), w.meta["val"].dtype
    if layout == "plain":
        return quantized(graph, w, Quantizer(None, None, None, fmt), dtype, like)
    stored = inline(graph, lambda dense: to_stored(dense, layout), w, like)
    y = quantized(graph, stored, Quantizer(None, None, None, fmt), dtype, like)
    return inline(graph, lambda values: from_stored(values, layout, shape), y, like)


def static(
    graph: fx.GraphModule, qparams: QParams, fmt: Format, name: str, like: fx.Node
) -> Quantizer:
    """How a tensor is quantized by a scale that is known: its parts as buffers `name`.scale, …"""
    parts = {
        part: _buffer(graph, f"{name}.{part}", getattr(qparams, part), like) for part in fmt.parts
    }
    scale, zero_point, outer = (parts.get(part) for part in ("scale", "zero_point", "outer"))
    more = [node for part, node in parts.items() if part not in FIRST]
    return Quantizer(scale, zero_point, outer, str(fmt), None, more or None)  # type: ignore[arg-type]


def _buffer(graph: fx.GraphModule, name: str, part: Tensor, like: fx.Node) -> fx.Node:
    """The node that reads the buffer of this name, the one that is there where it has this value:
    edges that share an observer share its scale."""
    for node in graph.graph.find_nodes(op="get_attr"):
        if node.target == name and constants.equal_bits(constants.get(graph, node), part):
            return node
    return constants.put_constant(graph, name, part, like=like)


@dataclass(frozen=True)
class Place:
    """An edge, as plain data, because torchao copies what it makes an observer of.

    part:   "input", "output", "weight" or "bias"
    fmt:    the format's spelling, or that of integers in steps of sums for a bias
    name:   what its buffers begin with, `encoder.fc.input`; where: as errors call it
    layout: of the layer's weight (blockscale.core.pack), "plain" for ops without one
    rank:   of the layer's weight, 2 for ops without one
    weight: of a bias in steps of sums: the name and the format of its layer's weight
    """

    part: str
    fmt: str
    name: str
    where: str
    layout: str = "plain"
    rank: int = 2
    weight: tuple[str, str] = ("", "")


class _Edge:
    """What observers and fake quantizers have in common."""

    place: Place
    observer: Observer | None
    _modules: Any

    def _begin(self, place: Place, spec: Spec) -> None:
        self.place = place
        kind = read_bias(place.fmt) if place.part == "bias" else parse(place.fmt)
        self.kind: Format | SumInteger = kind
        static = place.part in ("input", "output") and isinstance(kind, Format)
        static = static and kind.block.static  # type: ignore[union-attr]
        self.observer = make(spec, place.fmt) if static else None
        self.links: tuple[_Edge, ...] = ()  # a tuple, so that it is no submodule

    def see(self, x: Tensor) -> None:
        """Let the observer see x [...], if the scale is to be static."""
        if self.observer is not None:
            features = features_last(x.detach(), self.place.layout, self.place.rank)
            self.observer.to(x.device).observe(features)

    @property
    def missing(self) -> bool:
        """Whether a static scale has seen no data."""
        return self.observer is not None and not self.observer.finite

    def qparams(self) -> QParams | None:
        """The static parts; None for a dynamic scale."""
        return None if self.observer is None else self.observer.qparams()

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point of a static edge, as torchao asks for them. Raises ValueError for a
        dynamic one, which has none yet."""
        qparams = self.qparams()
        if qparams is None:
            raise ValueError(
                f"{self.place.where}: its scale is dynamic, chosen from each input: there is "
                "none to calculate"
            )
        return qparams.scale, qparams.zero_point

    def convert(self, model: fx.GraphModule, node: fx.Node) -> None:
        """Write the quantized edge in the place of the node that observed it."""
        _check_all(model)
        place, x = self.place, node.args[0]
        assert isinstance(x, fx.Node)
        for neighbour in (*node.users, x):  # the new nodes are their neighbours' for those who read
            node.meta = {k: neighbour.meta[k] for k in SCOPE if k in neighbour.meta} | node.meta
        if place.part == "weight":
            for layer in node.users:
                layer.meta[LAYER] = True
            y = weight(model, x, place.fmt, place.layout, like=node)
        elif isinstance(self.kind, SumInteger):
            y = self._write_sums(model, x, node)
        else:
            by, qparams = Quantizer(None, None, None, place.fmt), self.qparams()
            if qparams is not None:
                by = static(model, qparams, self.kind, place.name, node)
            y = activation(model, x, by, place.layout, place.rank, like=node)
        node.replace_all_uses_with(y)
        model.graph.erase_node(node)

    def steps(self, weight: Tensor) -> Tensor:
        """Of a bias in steps of sums: the step of each output, from its layer's float weight."""
        _, fmt = self.place.weight
        q = quantize(to_stored(weight.detach(), self.place.layout), fmt)
        qparams = self.links[0].qparams()
        assert qparams is not None
        own = parse(self.links[0].place.fmt)
        outputs = steps_of_outputs(q.dequantize(), q.qparams, q.format)
        return sum_steps(step_of(qparams, own), outputs)

    def _write_sums(self, model: fx.GraphModule, bias: fx.Node, node: fx.Node) -> fx.Node:
        """codes * steps: integers that the layer's sums can add, and their meaning."""
        assert isinstance(self.kind, SumInteger)
        steps = self.steps(_tensor(model, self.place.weight[0]))
        codes = self.kind.encode(constants.get(model, bias).detach(), steps)
        # the float bias lies at the place of their names as yet: `adopt` gives them those
        at = f"{self.place.name}_{{}}"
        constants_ = [constants.put_constant(model, at.format(n), t, like=node) for n, t in
                (("codes", codes), ("scale", steps))]  # fmt: skip
        for each, part in zip(constants_, ("codes", "scale"), strict=True):
            each.meta["blockscale_name"] = f"{self.place.name}.{part}"
        floats = call(
            model, aten._to_copy.default, (constants_[0],), {"dtype": torch.float32}, like=node
        )
        values = call(model, aten.mul.Tensor, (floats, constants_[1]), like=node)
        dtype = bias.meta["val"].dtype
        if dtype == torch.float32:
            return values
        return call(model, aten._to_copy.default, (values,), {"dtype": dtype}, like=node)


def _tensor(model: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), last)
    return tensor


def _check_all(model: fx.GraphModule) -> None:
    """Raises ValueError that names every static edge without data."""
    edges = [module for module in model.modules() if isinstance(module, _Edge)]
    missing = [edge.place.where for edge in edges if edge.missing]
    if missing:
        raise ValueError(
            "these edges have static scales and saw no data: "
            + ", ".join(dict.fromkeys(missing))
            + ": run batches through the prepared model before convert_pt2e"
        )


class Watch(_Edge, ObserverBase):
    """An observer on an edge: it lets tensors pass."""

    def __init__(self, place: Place, spec: Spec, dtype: Any = None, **_: Any):
        ObserverBase.__init__(self, dtype)
        self._begin(place, spec)

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> x, seen."""
        self.see(x)
        return x


class Fake(_Edge, FakeQuantizeBase):
    """A fake quantizer on an edge: what convert would make of it now, with a gradient."""

    def __init__(self, place: Place, spec: Spec, dtype: Any = None, **_: Any):
        FakeQuantizeBase.__init__(self)
        self.dtype, self.is_dynamic = dtype, False
        self._begin(place, spec)

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> its values after a round trip, in x's dtype."""
        if self.observer_enabled[0]:
            self.see(x)
        if not self.fake_quant_enabled[0] or self.missing:
            return x
        assert isinstance(self.kind, Format)
        place, by = self.place, QInput(self.kind)
        by.set_parts(self.qparams())
        if place.part == "weight":
            values = primitives.fake_quantize(
                to_stored(x, place.layout).contiguous(), quantizer(None, self.kind)
            )
            return from_stored(values, place.layout, x.shape)
        if not of_convolution(place.layout):
            return by(x)
        channel = x.ndim - place.rank + 1
        result: Tensor = by(x.movedim(channel, -1))
        return result.movedim(-1, channel)
