# SPDX-License-Identifier: BSD-3-Clause
"""Quantized layers that stand in a model for a while, so that what comes after them sees them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from blockscale.calibration.algorithms.output_error import by_nearest
from blockscale.calibration.choose import weight_of, weights_only
from blockscale.calibration.session import Session
from blockscale.layers.apply import swap
from blockscale.layers.joined import settle_top
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters.planned import coded
from blockscale.layers.plan import Plan
from blockscale.layers.store import QWeight


def whole(session: Session, plans: Sequence[Plan]) -> dict[str, QLayer]:
    """{name: the layer with its weight, inputs and outputs quantized}, biases in float."""
    layers: dict[str, QLayer] = {}
    for plan in plans:
        place, q = session.places[plan.name], session.places[plan.name].weight
        if not plan.owns_weight:
            continue
        if q is None:  # what will be rounded plainly
            stored = weight_of(plan)
            stored = stored if place.before is None else place.before.to_weight(stored)
            settle_top(plan, session.layers, session.places)
            q = coded(stored, by_nearest(plan.format), None, place.top)[0]
        kept = {
            part: fmt
            for part in ("input", "output")
            if (fmt := getattr(plan.scheme, part)) is not None
            and (not fmt.block.static or getattr(place, part) is not None)
        }
        scheme = replace(plan.scheme, **{"input": None, "output": None, "bias": None} | kept)
        parameter = plan.parameter
        weight = QWeight(q, tuple(parameter.shape), parameter.dtype, plan.layout)
        layer = plan.kind.from_float(plan.module, weight, scheme)
        for part in kept:
            if (quantizer := getattr(place, part)) is not None:
                setattr(layer, part, quantizer.to(parameter.device))
        if place.before is not None:
            layer.set_before(place.before)
        layer.take_place_of(plan.module)
        layers |= dict.fromkeys(plan.names, layer)
    return layers


@contextmanager
def standing_in(model: nn.Module, layers: dict[str, QLayer]) -> Iterator[None]:
    """These layers are in the model, as long as this lasts."""
    for layer in layers.values():
        layer.training = False
    old = swap(model, layers)
    try:
        yield
    finally:
        swap(model, old)


def quantized_so_far(session: Session, plans: Sequence[Plan], *, inputs: bool) -> dict[str, QLayer]:
    """What stands in for layers that are chosen. inputs: quantize those as well."""
    return whole(session, plans) if inputs else weights_only(session, plans)
