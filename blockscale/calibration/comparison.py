# SPDX-License-Identifier: BSD-3-Clause
"""What bs.compare measured: a value, a table, and plain data."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import Batches, call, inference, listener
from blockscale.calibration.errors import (
    Deviation,
    Rounding,
    RoundingSums,
    Sums,
    add_input,
    add_weight,
)
from blockscale.calibration.input_stats import Callback, features_last, watch
from blockscale.calibration.routers import (
    RouterComparison,
    RouterPair,
    router_lines,
    routers,
    watch_routers,
)
from blockscale.core import reference
from blockscale.core.pack import to_stored
from blockscale.core.parse import display_name
from blockscale.core.torch_private import pytree
from blockscale.core.work import Progress
from blockscale.layers.guards import check_model
from blockscale.layers.layer import QLayer
from blockscale.layers.model import without_wrappers
from blockscale.layers.store import all_held

ORDERS = ("isolated", "accumulated", "weight", "input", "name")


@dataclass(frozen=True)
class LayerComparison:
    """One quantized layer against the float layer of the same name.

    weight, input: what their formats do to them; the input is the float model's
    isolated: of the output, when the quantized layer is given the float model's input
    accumulated: of the output as it is in the quantized model, whose input is already off
    calls: how often the float layer was called
    unpaired: calls that the quantized model did not make, or with another shape
    """

    name: str
    kind: str
    formats: str
    weight: Rounding
    input: Rounding | None = None
    isolated: Deviation | None = None
    accumulated: Deviation | None = None
    calls: int = 0
    unpaired: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            key: value.to_dict() if isinstance(value, Deviation) else value
            for key, value in vars(self).items()
        }


@dataclass(frozen=True)
class Comparison:
    """Layers, the worst first, and the error of all float outputs of the model together.

    routers: of mixtures, how often they choose the experts that the float model's choose
    """

    layers: tuple[LayerComparison, ...]
    output: Deviation
    batches: int
    routers: tuple[RouterComparison, ...] = ()

    def __iter__(self) -> Iterator[LayerComparison]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, name: str) -> LayerComparison:
        """The layer `name`. Raises KeyError."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    def sorted(self, by: str = "isolated") -> "Comparison":
        """The same with the lowest SQNR of `by` first, or the first name.

        by: one of "isolated", "accumulated", "weight", "input", "name". Layers without such a
        error come last. Raises ValueError for anything else.
        """
        if by not in ORDERS:
            raise ValueError(f"unknown order {by!r}; choose from {', '.join(ORDERS)}")

        def key(layer: LayerComparison) -> tuple[float, str]:
            error = None if by == "name" else getattr(layer, by)
            worst = -math.inf if by == "name" else math.inf
            return worst if error is None else error.sqnr, layer.name

        return replace(self, layers=tuple(sorted(self.layers, key=key)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        layers = [layer.to_dict() for layer in self.layers]
        data = {"batches": self.batches, "output": self.output.to_dict(), "layers": layers}
        routed = [vars(each) for each in self.routers]
        return data | ({"routers": routed} if routed else {})

    def to_json(self) -> str:
        """The comparison as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """A plain table, one line a layer; SQNR in dB, sat and zero in percent."""
        head = ("layer", "weight dB", "sat", "zero", "input dB", "sat", "zero",
                "isolated dB", "accumulated dB", "cosine", "formats")  # fmt: skip
        rows = [head, *(_row(layer) for layer in self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        ends = {0, len(head) - 1}
        lines = [
            "  ".join(
                cell.ljust(width) if i in ends else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        notes = [f"{each.name}: {note}" for each in self.layers for note in _notes(each)]
        total = f"model output: {_sqnr(self.output)} dB, cosine {self.output.cosine:.6f}, "
        total += f"max error {self.output.max_error:.3g}; {self.batches} batches"
        return "\n".join([*lines, *notes, *router_lines(self.routers), total])


def _row(layer: LayerComparison) -> tuple[str, ...]:
    total = layer.accumulated
    return (
        layer.name, *_rounding(layer.weight), *_rounding(layer.input),
        _sqnr(layer.isolated), _sqnr(total), "" if total is None else f"{total.cosine:.6f}",
        display_name(layer.formats),
    )  # fmt: skip


def _rounding(error: Rounding | None) -> tuple[str, str, str]:
    if error is None:
        return "", "", ""
    return _sqnr(error), f"{error.saturated:.2f}", f"{error.underflowed:.2f}"


def _sqnr(error: Deviation | None) -> str:
    return "" if error is None else f"{error.sqnr:.2f}"


def _notes(layer: LayerComparison) -> Iterator[str]:
    if layer.calls == 0:
        yield "was not called"
    if layer.unpaired:
        yield f"{layer.unpaired} of {layer.calls} calls have no counterpart in the quantized model"
    for part in ("weight", "input", "isolated", "accumulated"):
        error = getattr(layer, part)
        hidden = 0
        if isinstance(error, Rounding) and (hidden := error.hidden_nans + error.hidden_infinities):
            yield (
                f"{part}: {error.hidden_nans} NaN and {error.hidden_infinities} infinite elements "
                f"came out finite: the format of the {part} has no code for them"
            )
        if error is not None and error.odd > hidden:
            yield f"{part}: {error.odd - hidden} elements are NaN or infinite on one side only"


# bs.compare: layer by layer, how far a quantized model is from the float one.


def compare(
    model_float: nn.Module,
    model_quantized: nn.Module,
    batches: Iterable[Any],
    *,
    progress: bool | Progress = False,
    budget: float = 1e9,
) -> Comparison:
    """Run both models over the same batches and measure each quantized layer against float.

    A layer's output has two errors: `isolated`, when the quantized layer is given the float
    model's input, which is the layer's own doing; and `accumulated`, as it is in the quantized
    model, with all that the layers before it did. Nothing but sums is kept between batches.

    model_float, model_quantized: two copies of one model, the second with quantized layers
    batches: as in `bs.calibrate`; once through is enough.
    progress: as there.
    budget: bytes of the float model's activations that are held at one time. With more, each batch
        goes through both models again for the rest.

    Returns the Comparison, the layer with the lowest isolated SQNR first. Raises ValueError if the
    second model has no quantized layer, or one that is not in the first.
    """
    for model in (model_float, model_quantized):
        check_model(model, "bs.compare")
    watcher, count = listener(progress), 0
    try:
        with without_wrappers(model_float) as first, without_wrappers(model_quantized) as second:
            differences = LayerDifferences(first, second, budget)
            with inference(first, second):
                for batch in Batches(batches, 1, "", watcher):
                    a, b = differences.run(batch)
                    differences.add_outputs(a, b)
                    count += 1
    finally:
        watcher.close()
    return differences.result(count)


class LayerDifferences:
    """What bs.compare measures, a batch at a time: for whoever runs both models anyway.

    budget: bytes of the float model's activations that are held at one time
    Raises ValueError as bs.compare does.
    """

    def __init__(self, model_float: nn.Module, model_quantized: nn.Module, budget: float = 1e9):
        self._models, self._budget = (model_float, model_quantized), budget
        self._layers, self._output = _pairs(model_float, model_quantized), Sums()
        self._routers = routers(model_float, model_quantized)

    def run(self, batch: Any) -> tuple[Any, Any]:
        """Both models over one batch, and what they returned."""
        return _one_batch(self._models, batch, self._layers, self._routers, self._budget)

    def add_outputs(self, a: Any, b: Any) -> None:
        """Add the difference of what the models returned."""
        for x, y in _float_outputs(a, b):
            self._output.add(x, y)

    def result(self, batches: int) -> Comparison:
        """All that was measured, the layer with the lowest isolated SQNR first."""
        layers = tuple(layer.result() for layer in self._layers)
        routed = tuple(match_ for pair in self._routers if (match_ := pair.result()) is not None)
        return Comparison(layers, self._output.result(), batches, routed).sorted()


def _pairs(model_float: nn.Module, model_quantized: nn.Module) -> list["_Layer"]:
    floats = dict(model_float.named_modules(remove_duplicate=False))
    quantized = {n: m for n, m in model_quantized.named_modules() if isinstance(m, QLayer)}
    if not quantized and next(all_held(model_quantized), None) is None:
        raise ValueError("the second model has no quantized layer: quantize it first")
    for name, layer in quantized.items():
        like = getattr(floats.get(name), "weight", None)
        if like is None or tuple(like.shape) != tuple(layer.qweight.shape):
            raise ValueError(
                f"the quantized layer {name!r} has no counterpart with a weight of shape "
                f"{tuple(layer.qweight.shape)} in the first model: compare two copies of the "
                "same model"
            )
        if floats[name] is layer:
            raise ValueError(
                "the models share their layers: compare with a copy made before quantizing"
            )
    return [_Layer(name, floats[name], layer) for name, layer in quantized.items()]


class _Layer:
    """A pair of layers, and the sums of their differences."""

    def __init__(self, name: str, like: nn.Module, layer: QLayer):
        self.name, self.like, self.layer = name, like, layer
        self.isolated, self.accumulated = Sums(), Sums()
        self.calls = self.unpaired = 0
        self.outputs: list[Tensor] = []  # outputs of the float layer for one batch
        self.input = None if layer.input is None else RoundingSums(layer.input.format)

    @torch.no_grad()
    def look(self, x: Tensor, y: Tensor) -> None:
        """One call of the float layer: what the quantized one makes of the same input."""
        self.calls += 1
        x = x.to(self.layer.qweight.device)
        self.isolated.add(y, self.layer.like(x, y))
        if self.input is not None:
            self._look_at_input(x, self.input)

    def _look_at_input(self, x: Tensor, sums: RoundingSums) -> None:
        layer, quantizer = self.layer, self.layer.input
        assert quantizer is not None
        x = features_last(x, layer.qweight.layout, len(layer.qweight.shape))
        x = reference.widen(layer.prepare_input(x)).contiguous()
        qparams = quantizer.parts_for(x)
        if qparams is None:
            qparams = reference.choose_qparams(x, quantizer.format.choosing)
        add_input(sums, x, quantizer(x), qparams)

    def meet(self, y: Tensor) -> None:
        """One call of the layer in the quantized model."""
        if not self.outputs:
            return
        a = self.outputs.pop(0)
        if a.shape != y.shape:
            self.unpaired += 1
        else:
            self.accumulated.add(a, y)

    def result(self) -> LayerComparison:
        """All that was measured."""
        layer, sums = self.layer, RoundingSums(self.layer.qweight.format)
        weight = self.like
        dense: Any = weight.dequantize_weight() if isinstance(weight, QLayer) else weight.weight
        stored = to_stored(dense.detach().to(layer.qweight.device), layer.qweight.layout).float()
        if layer.before is not None:
            stored = layer.before.to_weight(stored)
        add_weight(sums, stored.contiguous(), layer.qweight.tensor)
        parts = {"": layer.qweight, "input ": layer.input, "output ": layer.output}
        formats = ", ".join(label + part.fmt for label, part in parts.items() if part is not None)
        return LayerComparison(
            self.name, type(self.like).__name__, formats, sums.rounding(),
            None if self.input is None or not self.calls else self.input.rounding(),
            self.isolated.result() if self.calls else None,
            self.accumulated.result() if self.calls > self.unpaired else None,
            self.calls, self.unpaired,
        )  # fmt: skip


def _one_batch(
    models: tuple[nn.Module, nn.Module],
    batch: Any,
    layers: list[_Layer],
    routed: list[RouterPair],
    budget: float,
) -> tuple[Any, Any]:
    """Both models over one batch, as often as the budget for what is held between them asks."""
    pending, outputs = {layer.name for layer in layers}, None
    while pending or outputs is None:
        room = _Room(budget, pending)
        first = outputs is None
        pairs = routed if first else []
        looking = watch({layer.like: room.holder(layer, isolated=first) for layer in layers})
        with looking, watch_routers(pairs, quantized=False):
            a = call(models[0], batch)
        meeting = watch({layer.layer: _meeting(layer) for layer in layers})
        with meeting, watch_routers(pairs, quantized=True):
            b = call(models[1], batch)
        for layer in layers:
            layer.unpaired += len(layer.outputs)
            layer.outputs.clear()
        outputs = (a, b) if outputs is None else outputs
        pending = room.pending
    return outputs


class _Room:
    """Holds outputs of float layers as long as there is room; a layer is held wholly or not."""

    def __init__(self, budget: float, names: set[str]):
        self._free, self._names = budget, names
        self._in: defaultdict[str, bool] = defaultdict(lambda: self._free > 0)
        self.pending: set[str] = set()  # layers to be held in another run

    def holder(self, layer: _Layer, *, isolated: bool) -> Callback:
        """A callback for the float layer."""

        def hold(x: Tensor, y: Tensor) -> None:
            if isolated:
                layer.look(x, y)
            if layer.name not in self._names:
                return
            if self._in[layer.name]:
                layer.outputs.append(y.detach().clone())  # what follows may change it in place
                self._free -= y.nbytes
            else:
                self.pending.add(layer.name)

        return hold


def _meeting(layer: _Layer) -> Callback:
    def meet(x: Tensor, y: Tensor) -> None:
        del x
        layer.meet(y)

    return meet


def _float_outputs(a: Any, b: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of float tensors in what two models returned."""
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    for x, y in pairs:
        if isinstance(x, Tensor) and x.is_floating_point():
            if x.shape != y.shape:
                raise ValueError(
                    f"the two models give outputs of different shapes, {tuple(x.shape)} and "
                    f"{tuple(y.shape)}: compare two copies of the same model"
                )
            yield x, y
