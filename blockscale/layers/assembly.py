# SPDX-License-Identifier: BSD-3-Clause
"""A quantized layer from its plan, and what a caller supplies instead of having it chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.joined_weights import standing_rows
from blockscale.core.ledger import Entry
from blockscale.core.pack import stored_shape, to_stored
from blockscale.layers.before import Before
from blockscale.layers.layer import DYNAMIC, QLayer, notes_on_bias, quantize_bias
from blockscale.layers.parameters import ParameterPlan, quantize_parameter, quantized
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.saturation import lost_signs, odd_values_note, tops_of
from blockscale.layers.store import (
    QInput,
    QWeight,
    StackInput,
)
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor, describe

Scale = Tensor | QTensor
Scales = Mapping[
    str, Scale | tuple[Scale, Tensor | None] | tuple[Scale, Tensor | None, Scale | None]
]


@dataclass
class Supplied:
    """For one layer: its quantizers with static scales, its weight's codes, its Before module.

    top: the largest numerator of all layers that share its outer scale (`settle_top`)
    """

    input: QInput | None = None  # a StackInput for a stack of experts
    output: QInput | None = None
    weight: QTensor | None = None
    before: Before | None = None
    top: Tensor | None = None

    @property
    def note(self) -> str:
        """What the ledger says of it."""
        results = [f"static {part}" for part in ("input", "output") if getattr(self, part)]
        results += [f"{self.before.fmt} before it"] if self.before else []
        return ", ".join(results)


def supplied(
    plans: Sequence[Decision],
    input_scales: Scales | None = None,
    output_scales: Scales | None = None,
    weights: Mapping[str, QTensor] | None = None,
    before: Mapping[str, Before] | None = None,
    *,
    by_observers: bool = False,
) -> dict[str, Supplied]:
    """{first name of a layer: what is supplied for it}, every layer that is quantized.

    by_observers: outer scales of inputs that have to be given are found by observers, later
    Raises ValueError for a layer that takes no such thing, for what does not fit it, and for a
    layer with a format whose scales are given and not chosen (Format.unchosen), if they are not.
    """
    layers = [plan for plan in plans if isinstance(plan, Plan)]
    places = {plan.name: Supplied() for plan in layers}
    pairs: set[tuple[str, str]] = set()
    for option, inputs in (
        ("input_scales", input_scales),
        ("output_scales", output_scales),
        ("weights", weights),
        ("before", before),
    ):
        for name, value in (inputs or {}).items():
            plan = _taker(layers, option, name)
            if (option, plan.name) in pairs:
                raise ValueError(
                    f"{option} names {name!r} and {plan.name!r}, which are the same layer: pass one"
                )
            pairs.add((option, plan.name))
            try:
                _supply(places[plan.name], plan, option, value)
            except ValueError as error:
                raise ValueError(f"{option}[{name!r}]: {error}") from None
    for plan in layers:
        refuse_unchosen(plan, places[plan.name], by_observers=by_observers)
    return places


def refuse_unchosen(plan: Plan, place: Supplied, *, by_observers: bool = False) -> None:
    """Raise ValueError if a format of this layer has scales that nothing here can choose."""
    formats = plan.scheme.formats | {"input": plan.scheme.input if plan.kind.takes_input else None}
    options = {"weight": "weights", "input": "input_scales", "output": "output_scales"}
    for part, option in options.items():
        fmt = formats[part]
        is_own = part != "weight" or (plan.owns_weight and plan.scheme.profile is None)
        if fmt is None or not fmt.unchosen or not is_own or getattr(place, part) is not None:
            continue
        calibrated = fmt.gives_outer and not fmt.choosing.unchosen and part != "weight"
        if calibrated and by_observers:
            continue
        raise ValueError(
            f"{plan.name}: its {part} cannot be quantized in {fmt}: {fmt.unchosen}: use a "
            f"format that chooses its own, or pass what a file has ({option} of bs.quantize_)"
            + ", or let bs.calibrate choose it from data"
            * calibrated
        )


def inputs_of_stacks(
    plans: Sequence[ParameterPlan], places: Mapping[str, Supplied]
) -> dict[str, StackInput]:
    """{stack of experts: the quantizer of its input, with given scales}, of those that have them.

    Raises ValueError for a stack whose input's format has scales that nothing here chose.
    """
    quantizers = {}
    for plan in plans:
        by = places[plan.name].input if plan.name in places else None
        if isinstance(by, StackInput):
            quantizers[plan.name] = by
        elif plan.input is not None and plan.input.unchosen:
            raise ValueError(
                f"{plan.name}: its input cannot be quantized in {plan.input}: "
                f"{plan.input.unchosen}: use a format that chooses its own, or let bs.calibrate "
                "choose it for each expert from the tokens that it gets (no products with this "
                "stack were seen, if that was bs.calibrate)"
            )
    return quantizers


def _taker(layers: Sequence[Plan], option: str, name: str) -> Plan:
    """The plan of the quantized layer `name`. Raises ValueError where it can take no `option`."""
    plan = next((layer for layer in layers if name in layer.names), None)
    if option in ("input_scales", "output_scales"):
        part = option.removesuffix("_scales")
        takes = plan is not None and (part == "output" or plan.kind.takes_input)
        if plan is None or not takes or getattr(plan.scheme, part) is None:
            raise ValueError(
                f"{option} names {name!r}, but the recipe gives no such layer an {part} format"
            )
    if plan is None:
        raise ValueError(f"{option} names {name!r}, but the recipe quantizes no such layer")
    if option == "before" and not plan.kind.takes_input:
        raise ValueError(f"before names {name!r}, whose input is indices, not features")
    if option in ("weights", "before") and not plan.owns_weight:
        raise ValueError(
            f"{option} names {name!r}, which shares the codes of a tied layer: pass them for "
            "one of the tied layers"
        )
    return plan


def _supply(place: Supplied, plan: Plan, option: str, value: object) -> None:
    """Put a value in its place. Raises ValueError where it does not fit the layer."""
    if option == "weights":
        place.weight = fitting(plan, value)
    elif option == "before":
        if not isinstance(value, Before):
            raise ValueError(f"expected a Before, found {describe(value)}")
        if reason := plan.kind.refuses_before(plan.module, value):
            raise ValueError(reason)
        if plan.tied:
            raise ValueError("its weight is tied, and the layers that share it would need the same")
        place.before = value
    elif option == "input_scales":
        place.input = _static(plan, "input", value)
    else:
        place.output = _static(plan, "output", value)


def _static(plan: Plan, part: str, value: object) -> QInput:
    """The static quantizer of a layer's "input" or "output": a scale, perhaps with zero points and
    offsets.

    Raises ValueError for a scale that does not fit the layer.
    """
    quantizer = QInput(getattr(plan.scheme, part))
    scale, zero_point, offset, *_ = (*(value if isinstance(value, tuple) else (value,)), None, None)
    quantizer.set_scale(scale, zero_point, plan.features(part), offset)
    return quantizer


def fitting(plan: Plan, q: object) -> QTensor:
    """The codes of a weight, as they are. Raises ValueError where they do not fit the layer."""
    fmt, shape = plan.format, stored_shape(plan.parameter.shape, plan.layout)
    if not isinstance(q, QTensor) or q.format != fmt or tuple(q.shape) != shape:
        raise ValueError(f"expected a QTensor('{fmt}', shape={shape}), found {describe(q)}")
    return q


# Layers of a model that share their outer scale: what decides it (blockscale.core.joined_weights).
#
# The largest numerator of all of them, `top`, is found before the first of them is quantized: by
# who quantizes a model at once and by who goes through it block by block alike.


def top_of(plan: Plan | ParameterPlan, place: Supplied | None = None) -> Tensor:
    """The largest numerator of a weight, for its layer's changed input where something is before it
    ([..., 1, outer scales in a row] float32)."""
    stored = to_stored(plan.parameter.detach(), plan.layout)
    if place is not None and place.before is not None:
        stored = place.before.to(stored.device).to_weight(stored.to(torch.float32))
    with subnormals_kept():
        return tops_of(stored, plan.format).amax(-2, keepdim=True)


def largest(tops: Sequence[Tensor]) -> Tensor:
    """The largest of several weights' numerators, wherever these are."""
    return reduce(torch.maximum, (each.to(tops[0].device) for each in tops))


def settle_top(plan: Plan, plans: Mapping[str, Plan], places: Mapping[str, Supplied]) -> None:
    """Find the top of a layer, and of all that share its outer scale, if nobody has so far.

    plans: {first name: the layer}, of all that are quantized
    Those whose codes are supplied keep them, and the others do not look at them.
    """
    if not plan.outer_group or places[plan.name].top is not None:
        return
    entries = [plans[name] for name in plan.outer_group if name in plans]
    group = [each for each in entries if places[each.name].weight is None]
    if plan.name not in [each.name for each in group] or len(group) < 2:
        return
    top = largest([top_of(each, places[each.name]) for each in group])
    for each in group:
        places[each.name].top = top.to(each.parameter.device)


def parameter_tops(
    plans: Sequence[ParameterPlan], data: Mapping[str, object] | None = None
) -> dict[str, Tensor]:
    """{name: its top} of parameters that share their outer scale, but for those that are `made`."""
    tops: dict[str, Tensor] = {}
    rest = {each.name: each for each in plans if each.outer_group and each.name not in (data or {})}
    for plan in rest.values():
        if plan.name not in tops:
            group = [rest[name] for name in plan.outer_group if name in rest]
            top = largest([top_of(each) for each in group])
            tops |= {each.name: top.to(each.parameter.device) for each in group}
    return tops


# The quantized bias of a layer: integers in steps of its sums, or a format of its own.


def parameters_in_codes(
    plans: Sequence[ParameterPlan],
    places: Mapping[str, Supplied],
    qweights: Mapping[str, QWeight],
    seed: int | None,
) -> dict[str, tuple[QWeight, Entry]]:
    """{parameter of no layer: its codes and its entry}; stacks hold their given static inputs.

    qweights: {parameter: its codes}, where they are there already
    """
    inputs, tops = inputs_of_stacks(plans, places), parameter_tops(plans, qweights)
    parts = {n.name: quantized(n, seed, qweights.get(n.name), tops.get(n.name)) for n in plans}
    for name, by in inputs.items():
        parts[name][0].set_input(by)
    return parts


def without_dynamic(
    decisions: Sequence[Decision], static: Callable[[Plan], bool]
) -> list[Decision]:
    """The same; a bias in steps of sums stays in float where `static` says no of the input."""
    return [
        replace(each, bias_left=DYNAMIC)
        if isinstance(each, Plan) and each.sums_bias and not static(each)
        else each
        for each in decisions
    ]


# One quantized layer from its plan, and what the ledger says of it.


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
        details=", ".join(filter(None, [*plan.choice_notes, place.note])),
        here=layer.slow(),
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
    q = choose(with_rows(stored, fmt, top))
    if top is None:
        return q
    count = q.format.block.scale_shape(tuple(stored.shape))[0]
    of_blocks = (name for name in ("scale", "zero_point", "offset") if name in q.format.parts)
    parts = {name: getattr(q.qparams, name)[:count] for name in of_blocks}
    return replace(q, packed=q.packed[: len(stored)], qparams=q.qparams._replace(**parts))


def with_rows(stored: Tensor, fmt: Format, top: Tensor | None) -> Tensor:
    """A weight [n, k] and below it the row that stands for all that share its outer scale, if any
    do."""
    if top is None:
        return stored
    return torch.cat([stored, standing_rows(top, fmt, stored.shape[-1]).to(stored.dtype)])


def weight_in_codes(plan: Plan, place: Supplied, seed: int | None) -> tuple[QWeight, list[str]]:
    """A layer's weight in codes, and what a user should know about it in this format."""
    parameter, fmt = plan.parameter, plan.format
    layout, shape = plan.layout, tuple(parameter.shape)
    stored = to_stored(parameter.detach(), layout)
    notes = [odd] if (odd := odd_values_note(stored)) else []
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
    q, more = quantize_parameter(stored, fmt, seed, place.top)
    return QWeight(q, shape, parameter.dtype, layout), notes + more
