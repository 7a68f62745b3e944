"""The quantized bias of a layer: integers in steps of its sums, or a format of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from blockscale.core.bias import BiasFormat, live_steps, sum_steps
from blockscale.core.format import Format
from blockscale.core.reference import QParams, step_of
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.store import QBias, QInput, QWeight

DYNAMIC = (
    "its input chooses a scale each time it runs, so its sums have no step to count in: give it a "
    "static one, as bs.calibrate does"
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


def quantize_bias(layer: QLayer, fmt: BiasFormat, seed: int | None = None) -> list[str]:
    """Put the codes of a layer's float bias in its place; what a user should know of them.

    fmt: for a SumInteger the layer needs a static input of one scale, and its final weight.
    seed: for a format that rounds stochastically.

    Raises ValueError for a layer without a float bias.
    """
    bias = layer._parameters.get("bias")
    if bias is None:
        raise ValueError(f"a {type(layer).__name__} without a float bias cannot quantize it")
    bias = bias.detach()
    notes = []
    if odd := int((~bias.isfinite()).sum()):
        notes.append(f"{odd} of {bias.numel()} biases are NaN or infinite")
    if isinstance(fmt, Format):
        layer.bias = QWeight.quantize(bias, fmt, seed=seed)
        return notes
    steps = steps_of_sums(layer)
    if beyond := int((bias.isfinite() & ~fmt.in_range(bias, steps)).sum()):
        notes.append(
            f"{beyond} of {bias.numel()} biases are more steps of input times weight than "
            f"{fmt} holds, and saturate: use larger scales, or leave this bias in float"
        )
    layer.bias = QBias(fmt.encode(bias, steps), steps, fmt, bias.dtype)
    return notes


def steps_of_sums(layer: QLayer) -> Tensor:
    """The step of each output's sum [n] float32: the static input's times the weight's."""
    weight = layer.weight.tensor
    rows = weight.shape[0]
    if layer.input is None or not layer.input.static:
        raise ValueError(f"{type(layer).__name__}: {DYNAMIC}")
    dead = (weight.dequantize() == 0).flatten(1).all(1)
    steps = step_of(weight.qparams, weight.format).reshape(-1).expand(rows)
    return sum_steps(step_of_input(layer.input), live_steps(steps, dead))


def step_of_input(quantizer: QInput) -> Tensor:
    """The step of a static input of one scale, float32 []."""
    scale, zero_point, outer = quantizer.parts
    assert scale is not None
    return step_of(QParams(scale, outer, zero_point), quantizer.format).reshape(())
