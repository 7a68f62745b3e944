# SPDX-License-Identifier: BSD-3-Clause
"""The quantized bias of a layer: integers in steps of its sums, or a format of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from blockscale.core.arithmetic.sums import live_steps, sum_steps
from blockscale.core.format import Format
from blockscale.core.recipe import BiasFormat
from blockscale.core.reference import QParams, step_of
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.store import QBias, QInput, QWeight

DYNAMIC = (
    "the scale of its input is dynamic, so its sums have no fixed step: use a static scale "
    "(bs.calibrate chooses it)"
)


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


def quantize_bias(layer: QLayer, fmt: BiasFormat, seed: int | None = None) -> None:
    """Put the codes of a layer's float bias in its place.

    fmt: for a SumInteger the layer needs a static input of one scale, and its final weight.
    seed: for a format that rounds stochastically.
    """
    bias = _float_bias(layer)
    if isinstance(fmt, Format):
        layer.set_bias(QWeight.quantize(bias, fmt, seed=seed))
        return
    steps = steps_of_sums(layer)
    layer.set_bias(QBias(fmt.encode(bias, steps), steps, fmt, bias.dtype))


def notes_on_bias(layer: QLayer, fmt: BiasFormat) -> list[str]:
    """What a user should know of a float bias that `quantize_bias` is to quantize."""
    bias, notes = _float_bias(layer), []
    if odd := int((~bias.isfinite()).sum()):
        notes.append(f"{odd} of {bias.numel()} biases are NaN or infinite")
    if isinstance(fmt, Format):
        return notes
    if beyond := int((bias.isfinite() & ~fmt.in_range(bias, steps_of_sums(layer))).sum()):
        notes.append(
            f"{beyond} of {bias.numel()} biases are more steps (input scale times weight "
            f"scale) than {fmt} holds, and saturate: use larger scales, or leave this bias in "
            "float"
        )
    return notes


def _float_bias(layer: QLayer) -> Tensor:
    bias = layer._parameters["bias"]
    assert bias is not None
    return bias.detach()


def steps_of_sums(layer: QLayer) -> Tensor:
    """The step of each output's sum [n] float32: the static input's times the weight's.

    Raises ValueError for a dynamic input.
    """
    if layer.input is None or not layer.input.static:
        raise ValueError(f"{type(layer).__name__}: {DYNAMIC}")
    weight = layer.qweight.tensor
    steps = steps_of_outputs(weight.dequantize(), weight.qparams, weight.format)
    return sum_steps(step_of_input(layer.input), steps)


def steps_of_outputs(values: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """A weight's values [n, k], and the stored scale that they have -> the step of each output [n]:
    the scale's, or the part of it in which its powers of two are counted (Element.grain).

    Outputs whose weights are all 0 have the step of others (core.arithmetic.sums.live_steps).
    """
    part = 2.0 ** -(fmt.element.grain or 0)
    steps = (step_of(qparams, fmt) * part).reshape(-1).expand(values.shape[0])
    return live_steps(steps, (values == 0).all(1))


def step_of_input(quantizer: QInput) -> Tensor:
    """The step of a static input of one scale, float32 []."""
    scale, zero_point, outer = quantizer.parts
    assert scale is not None
    return step_of(QParams(scale, outer, zero_point), quantizer.format).reshape(())
