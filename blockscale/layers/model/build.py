# SPDX-License-Identifier: BSD-3-Clause
"""One quantized layer from its plan, and what the ledger says of it."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.format import Format
from blockscale.core.layout import to_stored
from blockscale.core.ledger import Entry
from blockscale.core.weights.fused import standing_rows
from blockscale.layers.bias import notes_on_bias, quantize_bias
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters.planned import coded
from blockscale.layers.plan import Plan
from blockscale.layers.saturation import told_of_odd
from blockscale.layers.signs import lost_signs
from blockscale.layers.store import QWeight
from blockscale.layers.supplied import Supplied
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


def build(
    plan: Plan, weights: dict[int, QWeight], place: Supplied, seed: int | None
) -> tuple[QLayer, Entry]:
    """The quantized layer and what the ledger says of it.

    weights: {id of a float weight: its codes}, of the layers so far; this one's are added
    """
    notes: list[str] = []
    if plan.owns_weight:
        own = None if seed is None else named_seed(seed, f"{plan.name}.weight")
        weights[id(plan.parameter)], notes = weight_in_codes(plan, place, own)
    weight = weights[id(plan.parameter)]
    layer = plan.kind.from_float(plan.module, weight, plan.scheme)
    for part in ("input", "output"):
        if (quantizer := getattr(place, part)) is not None:
            setattr(layer, part, quantizer.to(plan.parameter.device))
    if place.before is not None:
        layer.set_before(place.before)
    if plan.quantizes_bias and plan.scheme.bias is not None:
        notes += notes_on_bias(layer, plan.scheme.bias)
        own = None if seed is None else named_seed(seed, f"{plan.name}.bias")
        quantize_bias(layer, plan.scheme.bias, own)
    layer.take_place_of(plan.module)
    unused = plan.scheme.input is not None and layer.input is None
    reasons = ["shares the codes of a tied layer"] * (not plan.owns_weight)
    reasons += ["its input is indices, which have no format"] * unused
    entry = replace(
        plan.entry,
        weight=weight.fmt,
        input="" if layer.input is None else layer.input.fmt,
        output="" if layer.output is None else layer.output.fmt,
        reason="; ".join(reasons),
        details=", ".join(filter(None, [*plan.told, place.told, layer.slow()])),
        bias="" if layer.quantized_bias is None else layer.quantized_bias.fmt,
        notes=(*plan.entry.notes, *notes),
        bytes_after=plan.bytes_beside + _nbytes(layer, plan.owns_weight),
    )
    return layer, entry


def _nbytes(layer: QLayer, owns_weight: bool) -> int:
    """Bytes of a layer's codes, unless they are another's, and of what is before it."""
    beside = 0 if layer.before is None else layer.before.nbytes
    beside += 0 if layer.quantized_bias is None else layer.quantized_bias.nbytes
    return beside + (layer.qweight.nbytes if owns_weight else 0)


def beside_rows(
    stored: Tensor, fmt: Format, top: Tensor | None, choose: Callable[[Tensor], QTensor]
) -> QTensor:
    """A weight [n, k] as it is stored -> the codes that `choose` gives for it.

    top: the largest numerator of all layers that share its outer scale, which rows stand for that
        are put below it; None where it shares none
    """
    if top is None:
        return choose(stored)
    rows = standing_rows(top, fmt, stored.shape[-1])
    q = choose(torch.cat([stored, rows.to(stored.dtype)]))
    count = q.format.block.scale_shape(tuple(stored.shape))[0]
    of_blocks = (name for name in ("scale", "zero_point", "offset") if name in q.format.parts)
    cut = {name: getattr(q.qparams, name)[:count] for name in of_blocks}
    return replace(q, packed=q.packed[: len(stored)], qparams=q.qparams._replace(**cut))


def weight_in_codes(plan: Plan, place: Supplied, seed: int | None) -> tuple[QWeight, list[str]]:
    """A layer's weight in codes, and what a user should know about it in this format."""
    parameter, fmt = plan.parameter, plan.format
    layout, shape = plan.layout, tuple(parameter.shape)
    stored = to_stored(parameter.detach(), layout)
    notes = [odd] if (odd := told_of_odd(stored)) else []
    if place.weight is not None:
        notes += lost_signs("weight", stored, fmt)
        return QWeight(place.weight.to(parameter.device), shape, parameter.dtype, layout), notes
    if (profile := plan.scheme.profile) is not None:
        if place.before is not None:
            raise ValueError(
                f"{plan.name}: {place.before.fmt} changes its weight first, and profile "
                f"{profile} needs the original weight: use a plain format"
            )
        notes += lost_signs("weight", stored, fmt)
        try:
            q = beside_rows(stored, fmt, place.top, lambda x: quantize(x, profile))
        except ValueError as error:
            raise ValueError(f"{plan.name}: {error}") from None
        return QWeight(q, shape, parameter.dtype, layout), notes
    if place.before is not None:
        stored = place.before.to(parameter.device).to_weight(stored.to(torch.float32))
    q, more = coded(stored, fmt, seed, place.top)
    return QWeight(q, shape, parameter.dtype, layout), notes + more
