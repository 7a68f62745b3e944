# SPDX-License-Identifier: BSD-3-Clause
"""The primitives as torch ops. Codes are packed here (docs/numerics.md, section 6).

What a format does not have is None in its operands. `tensor.py` wraps these for people.
"""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, part_names
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.registry import find
from blockscale.ops import shapes
from blockscale.ops.gradient import differentiable, not_differentiable
from blockscale.ops.op import op


def to_list(qparams: QParams) -> list[Tensor]:
    """The parts that a format has, in the order of Format.parts."""
    return [part for part in qparams if part is not None]


def from_list(parts: list[Tensor], fmt: Format) -> QParams:
    """What `to_list` made, read back."""
    if len(parts) == 1:  # nearly always
        return QParams(parts[0])
    return QParams(**dict(zip(part_names(fmt.spelling), parts, strict=True)))


@op(shape=shapes.choose_qparams)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """x [...] -> [scale, and what else the format has, in the order of Format.parts]."""
    return to_list(reference.choose_qparams(x, parse(fmt)))


@op(shape=shapes.choose_beside, composed=True)
def choose_beside(x: Tensor, outer: Tensor, fmt: str) -> list[Tensor]:
    """x [...] and an outer scale that is given -> [scale, and what else the format has]."""
    form = parse(fmt)
    ranges = reference.ranges(x, form)
    qparams = reference.qparams_from_range(*ranges, form, outer)
    qparams = reference.settle(x, ranges, qparams, form, block_errors)
    return to_list(qparams._replace(outer=None))


def block_errors(x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """As core.reference.block_errors, by a kernel of x's device where there is one. No torch op:
    those that choose scales call it."""
    result = find("block_errors", (fmt.spelling,), x.device.type, (), composite=True)
    run = reference.block_errors if result is None else result.run
    errors: Tensor = run(x, qparams, fmt)
    return errors


@op(shape=shapes.quantize)
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """x [..., k] -> packed codes [..., packed_size(k)]; without a scale, x chooses it."""
    codes = reference.quantize(x, _given_or_chosen(x, by), by.format, by.seed)
    return packing.pack(codes, by.format.element).contiguous()


@op(shape=shapes.choose_quantize)
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """choose_qparams and quantize at once: [packed, *choose_qparams(x, fmt)]."""
    form = parse(fmt)
    qparams = reference.choose_qparams(x, form)
    codes = reference.quantize(x, qparams, form, seed)
    return [packing.pack(codes, form.element).contiguous(), *to_list(qparams)]


@op(shape=shapes.dequantize)
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """Packed codes of rows of `size` -> values [..., size] of `dtype`."""
    codes = packing.unpack(packed.codes, packed.format.element, packed.shape)
    return reference.dequantize(codes, packed.qparams, packed.format, dtype)


@op(shape=shapes.like_first)
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """x [...] -> its values after a round trip, in x's dtype; without a scale, x chooses it."""
    qparams = _given_or_chosen(x, by)
    return _strided_like(x, reference.fake_quantize(x, qparams, by.format, by.seed))


@op(shape=shapes.like_first)
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """The gradient of fake_quantize: that of its output where x is in range, 0 elsewhere."""
    inside = reference.in_range(x, _given_or_chosen(x, by), by.format)
    return _strided_like(gradient, torch.where(inside, gradient, 0.0))


@op(shape=shapes.pack)
def pack(codes: Tensor, fmt: str) -> Tensor:
    """Codes [..., k] -> packed [..., packed_size(k)]."""
    return packing.pack(
        codes, parse(fmt).element
    ).clone()  # an op's output must not alias its input


@op(shape=shapes.unpack)
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """Packed codes of rows of `size` -> codes [..., size]."""
    shape = (*packed.shape[:-1], size)
    return packing.unpack(packed, parse(fmt).element, shape).clone()


def _strided_like(x: Tensor, values: Tensor) -> Tensor:
    """`values` with the strides that torch.empty_like(x) has: what the graph was told."""
    expected = torch.empty_like(x)
    return values if values.stride() == expected.stride() else expected.copy_(values)


def _given_or_chosen(x: Tensor, by: Quantizer) -> QParams:
    return by.qparams or reference.choose_qparams(x, by.format)


def _backward(
    gradient: Tensor, needs: set[str], x: Tensor, by: Quantizer
) -> dict[str, Tensor | None]:
    if needs & {"scale", "outer"}:
        raise RuntimeError(
            "blockscale::fake_quantize has no gradient for a scale: detach it (a learned "
            "scale needs bs.prepare_qat)"
        )
    return {"x": straight_through(gradient, x, by)}


def _forward(tangents: dict[str, Tensor], x: Tensor, by: Quantizer) -> Tensor:
    tangent: Tensor = straight_through(tangents["x"], x, by)
    return tangent


def _backward_through(
    gradient: Tensor, needs: set[str], tensor: Tensor, x: Tensor, by: Quantizer
) -> dict[str, Tensor | None]:
    """Of straight_through: linear in the gradient it is given, flat in x."""
    del needs, tensor
    return {"gradient": straight_through(gradient, x, by)}


def _forward_through(
    tangents: dict[str, Tensor], gradient: Tensor, x: Tensor, by: Quantizer
) -> Tensor:
    value = tangents.get("gradient")
    return torch.zeros_like(gradient) if value is None else straight_through(value, x, by)


differentiable(fake_quantize, _backward, _forward)
differentiable(straight_through, _backward_through, _forward_through)


def _backward_dequantize(
    gradient: Tensor, needs: set[str], packed: Operand, dtype: torch.dtype
) -> dict[str, Tensor | None]:
    """The gradient of the scales, by the reference: values are codes times scales."""
    scales = {"scale": packed.scale, "outer": packed.outer}
    leaves = {
        name: scale.detach()
        for name, scale in scales.items()
        if name in needs and scale is not None
    }

    def values(leaves: dict[str, Tensor]) -> Tensor:
        return dequantize.reference(packed._replace(**leaves), dtype)  # type: ignore[arg-type, no-any-return]

    gradients: dict[str, Tensor | None] = torch.func.vjp(values, leaves)[1](gradient)[0]
    return gradients


differentiable(dequantize, _backward_dequantize)
for each in (choose_qparams, choose_beside, choose_quantize):
    not_differentiable(each, "use bs.fake_quantize, whose gradient is straight-through")
