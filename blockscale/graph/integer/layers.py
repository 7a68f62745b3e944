# SPDX-License-Identifier: BSD-3-Clause
"""What integer arithmetic needs to know of a quantized layer, and what keeps it from it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.bits import exponent, pow2
from blockscale.core.arithmetic.sums import INT32_MAX
from blockscale.core.pack import from_stored
from blockscale.core.reference import QParams
from blockscale.graph.integer.arithmetic import (
    integer_bias,
    largest_sum,
)
from blockscale.graph.integer.steps import ConvSettings, IntegerConv, IntegerLinear
from blockscale.graph.lowering.integers.fixed import (
    FLOAT32_EXACT,
    HIGHEST,
    LOWEST,
    check_shifted,
    steps,
)
from blockscale.graph.lowering.integers.fixed import NotIntegerError as NotIntegerError
from blockscale.graph.lowering.integers.weights import check_weight, whole
from blockscale.layers.conv import QConv
from blockscale.layers.layer import QLayer
from blockscale.layers.linear import QLinear
from blockscale.layers.store import QBias, QInput


@dataclass(frozen=True, eq=False)
class Fixed:
    """What integers [...] mean: (code - zero_point) * 2^exponent.

    exponent: int32, one for all or broadcasting with the values; largest: of |code - zero_point|.
    """

    exponent: Tensor
    zero_point: int
    largest: int

    @property
    def exact(self) -> bool:
        """Whether float32 holds each of these values, and so adds them without rounding."""
        return self.largest <= FLOAT32_EXACT


def check_fixed(fixed: Fixed, what: str) -> Fixed:
    """The same. Raises NotIntegerError for integers beyond int32 and steps beyond float32."""
    if fixed.largest > INT32_MAX:
        raise NotIntegerError(
            f"{what} can reach {fixed.largest}, more than int32 holds ({INT32_MAX}): "
            f"use fewer bits or inputs"
        )
    low, high = int(fixed.exponent.min()), int(fixed.exponent.max())
    if low < LOWEST or high > HIGHEST:
        raise NotIntegerError(
            f"{what} have steps from 2^{low} to 2^{high}, outside 2^{LOWEST} ... 2^{HIGHEST}: "
            "was a scale chosen from data of zeros?"
        )
    return fixed


def of_quantizer(quantizer: QInput | None, what: str) -> Fixed:
    """What the codes of a layer's static input or output mean. Raises NotIntegerError."""
    if quantizer is None:
        raise NotIntegerError(f"{what} has no format: set one such as 'int8:tensor:pow2/nearest'")
    fmt = quantizer.format
    check_shifted(fmt, what)
    if not quantizer.static:
        raise NotIntegerError(
            f"{what} chooses its scale at run time: use a static scale (bs.calibrate chooses it)"
        )
    scale, zero_point, _ = quantizer.parts
    assert scale is not None
    if scale.numel() != 1:
        raise NotIntegerError(
            f"{what} is {fmt}: a sum needs one scale, and this has one for each channel: use "
            "'tensor'"
        )
    low, high = (int(limit) for limit in fmt.element.limits(fmt.wide))
    zero = 0 if zero_point is None else int(zero_point)
    exponents = exponent(steps(QParams(scale, None, zero_point), fmt, what)).reshape(())
    return Fixed(exponents, zero, max(high - zero, zero - low))


def _weight(layer: QLayer, what: str) -> tuple[Tensor, Tensor]:
    """Codes of the weight in its stored layout [n, k], and exponents [n] int32."""
    q = layer.qweight.tensor
    fmt, zero_point = q.format, q.zero_point
    check_weight(fmt, q.qparams.scale, q.shape[0], what)
    values = fmt.element.decode(q.codes)
    if zero_point is not None:
        values = values - zero_point.to(torch.float32)
    found = steps(q.qparams, fmt, what).reshape(-1).expand(q.shape[0])
    return whole(values, found, fmt, what)


def _bias(layer: QLayer, name: str, exponents: Tensor) -> Tensor | None:
    """The bias [n] int32 in steps of 2^exponents: the codes it has, or made now."""
    if isinstance(layer.quantized_bias, QBias):
        if not torch.equal(layer.quantized_bias.scale, pow2(exponents.clamp(-149, 127))):
            raise NotIntegerError(
                f"the bias of {name!r} was quantized for other scales of its input and "
                "weight, which have changed since: quantize the float model again"
            )
        return layer.quantized_bias.codes.to(torch.int32)
    bias = layer.added_bias()
    if bias is None:
        return None
    if bias.dtype != torch.float32:
        raise NotIntegerError(f"the bias of {name!r} is {bias.dtype}: use model.float()")
    try:
        return integer_bias(bias, exponents)
    except ValueError as error:
        raise NotIntegerError(f"{name!r}: {error}") from None


def sums(layer: QLayer, name: str) -> tuple[Tensor, Tensor | None, Fixed]:
    """A layer -> its weight's codes [n, k], its bias [n] int32 and what its sums mean.

    Raises NotIntegerError for scales or formats that do not fit, and for sums beyond int32.
    """
    if layer.before is not None:
        raise NotIntegerError(
            f"{name!r} transforms its input in float ({layer.before.fmt}): calibrate without it"
        )
    given = of_quantizer(layer.input, f"the input of {name!r}")
    codes, of_weight = _weight(layer, f"the weight of {name!r}")
    exponents = given.exponent + of_weight
    offset = _bias(layer, name, exponents)
    fixed = Fixed(exponents, 0, largest_sum(codes, offset, given.largest))
    return codes, offset, check_fixed(fixed, f"sums of {name!r}")


def integer_layer(layer: QLayer, name: str) -> tuple[nn.Module, Fixed]:
    """A quantized layer -> the step from its input's codes to int32 sums, and what those mean."""
    if not isinstance(layer, QLinear | QConv):
        raise NotIntegerError(f"{name!r} ({type(layer).__name__}) has no integer form")
    codes, bias, fixed = sums(layer, name)
    zero_point = of_quantizer(layer.input, name).zero_point
    if isinstance(layer, QLinear):
        return IntegerLinear(codes, bias, zero_point), _uniform(fixed, fixed.exponent)
    if layer.padding_mode != "zeros":
        raise NotIntegerError(
            f"{name!r} pads with {layer.padding_mode!r}: only zeros are supported"
        )
    weight = from_stored(codes, "channels_last", layer.qweight.shape).contiguous()
    settings = ConvSettings(list(layer.stride), layer._inside, list(layer.dilation), layer.groups)
    by_channel = fixed.exponent.reshape(-1, *(1,) * (weight.ndim - 2))
    return IntegerConv(weight, bias, zero_point, layer._around, settings), _uniform(
        fixed, by_channel
    )


def _uniform(fixed: Fixed, exponents: Tensor) -> Fixed:
    """With one exponent for all, where all are equal: shapes may then change freely."""
    if bool((exponents == exponents.reshape(-1)[:1]).all()):
        exponents = exponents.reshape(-1)[0]
    return Fixed(exponents.clone(), fixed.zero_point, fixed.largest)
