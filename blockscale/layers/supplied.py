# SPDX-License-Identifier: BSD-3-Clause
"""What a caller supplies to quantize_ instead of having it chosen, checked beforehand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from blockscale.core.pack import stored_shape
from blockscale.layers.before import Before
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor, describe

Scale = Tensor | QTensor
Scales = Mapping[
    str, Scale | tuple[Scale, Tensor | None] | tuple[Scale, Tensor | None, Scale | None]
]


@dataclass
class Supplied:
    """For one layer: its quantizers with static scales, its weight's codes, its Before module.

    top: the largest numerator of all layers that share its outer scale (layers.joined)
    """

    input: QInput | None = None
    output: QInput | None = None
    weight: QTensor | None = None
    before: Before | None = None
    top: Tensor | None = None

    @property
    def told(self) -> str:
        """What the ledger says of it."""
        said = [f"static {part}" for part in ("input", "output") if getattr(self, part)]
        said += [f"{self.before.fmt} before it"] if self.before else []
        return ", ".join(said)


def supplied(
    plans: Sequence[Decision],
    input_scales: Scales | None = None,
    output_scales: Scales | None = None,
    weights: Mapping[str, QTensor] | None = None,
    before: Mapping[str, Before] | None = None,
    *,
    observed: bool = False,
) -> dict[str, Supplied]:
    """{first name of a layer: what is supplied for it}, every layer that is quantized.

    observed: outer scales of inputs that have to be given are found by observers, later
    Raises ValueError for a layer that takes no such thing, for what does not fit it, and for a
    layer with a format whose scales are given and not chosen (Format.unchosen), if they are not.
    """
    layers = [plan for plan in plans if isinstance(plan, Plan)]
    places = {plan.name: Supplied() for plan in layers}
    named: set[tuple[str, str]] = set()
    for option, given in (
        ("input_scales", input_scales),
        ("output_scales", output_scales),
        ("weights", weights),
        ("before", before),
    ):
        for name, value in (given or {}).items():
            plan = _taker(layers, option, name)
            if (option, plan.name) in named:
                raise ValueError(
                    f"{option} names {name!r} and {plan.name!r}, which are the same layer: pass one"
                )
            named.add((option, plan.name))
            try:
                _supply(places[plan.name], plan, option, value)
            except ValueError as error:
                raise ValueError(f"{option}[{name!r}]: {error}") from None
    for plan in layers:
        refuse_unchosen(plan, places[plan.name], observed=observed)
    return places


def refuse_unchosen(plan: Plan, place: Supplied, *, observed: bool = False) -> None:
    """Raise ValueError if a format of this layer has scales that nothing here can choose."""
    formats = plan.scheme.formats | {"input": plan.scheme.input if plan.kind.takes_input else None}
    options = {"weight": "weights", "input": "input_scales", "output": "output_scales"}
    for part, option in options.items():
        fmt = formats[part]
        owned = part != "weight" or (plan.owns_weight and plan.scheme.profile is None)
        if fmt is None or not fmt.unchosen or not owned or getattr(place, part) is not None:
            continue
        calibrated = fmt.gives_outer and not fmt.choosing.unchosen and part != "weight"
        if calibrated and observed:
            continue
        raise ValueError(
            f"{plan.name}: its {part} cannot be quantized in {fmt}: {fmt.unchosen}: use a "
            f"format that chooses its own, or pass what a file has ({option} of bs.quantize_)"
            + ", or let bs.calibrate choose it from data"
            * calibrated
        )


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


def _static(plan: Plan, part: str, given: object) -> QInput:
    """The static quantizer of a layer's "input" or "output": a scale, perhaps with zero points and
    offsets.

    Raises ValueError for a scale that does not fit the layer.
    """
    quantizer = QInput(getattr(plan.scheme, part))
    scale, zero_point, offset, *_ = (*(given if isinstance(given, tuple) else (given,)), None, None)
    quantizer.set_scale(scale, zero_point, plan.features(part), offset)
    return quantizer


def fitting(plan: Plan, q: object) -> QTensor:
    """The codes of a weight, as they are. Raises ValueError where they do not fit the layer."""
    fmt, shape = plan.format, stored_shape(plan.parameter.shape, plan.layout)
    if not isinstance(q, QTensor) or q.format != fmt or tuple(q.shape) != shape:
        raise ValueError(f"expected a QTensor('{fmt}', shape={shape}), found {describe(q)}")
    return q
