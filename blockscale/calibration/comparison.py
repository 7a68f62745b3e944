# SPDX-License-Identifier: BSD-3-Clause
"""What bs.compare measured: a value, a table, and plain data."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from blockscale.calibration.errors import Deviation, Rounding

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
    """Layers, the worst first, and the error of all float outputs of the model together."""

    layers: tuple[LayerComparison, ...]
    output: Deviation
    batches: int

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
        return {"batches": self.batches, "output": self.output.to_dict(), "layers": layers}

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
        return "\n".join([*lines, *notes, total])


def _row(layer: LayerComparison) -> tuple[str, ...]:
    total = layer.accumulated
    return (
        layer.name, *_rounding(layer.weight), *_rounding(layer.input),
        _sqnr(layer.isolated), _sqnr(total), "" if total is None else f"{total.cosine:.6f}",
        layer.formats,
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
