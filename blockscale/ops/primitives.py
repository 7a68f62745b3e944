# SPDX-License-Identifier: BSD-3-Clause
"""The primitives as torch ops. Codes are packed here (docs/numerics.md, section 6).

What a format does not have is None in its operands. `tensor.py` wraps these for people.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, part_names
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.registry import find, run_reference
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


# Columns that are rounded one after the other, each making up for the errors of those before it:
# the inner loop of GPTQ and of coordinate descent (blockscale.calibration.algorithms). It is no
# torch op: nothing that is traced or exported calls it.


class Rounded(NamedTuple):
    """What became of columns [c, n]: their codes, their values float32, and the errors float64."""

    codes: Tensor
    values: Tensor
    errors: Tensor


def round_columns(tensor: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer) -> Rounded:
    """Round row j of `wanted`, then take its error times coupling[j, l] from each later row l.

    A row here is a column of a weight [n, k], so that neighbours in memory can be rounded at once.

    wanted: [c, n] float64; it is rounded to float32 first
    base: [c, n] float64, what errors are counted from: error = base - value; None for the row
        itself, as it was when its turn came
    coupling: [c, c] float64, of which the part above the diagonal counts
    by: scales of blocks of one element, [c, n]; deterministic rounding

    All arithmetic but rounding is float64, each product and each difference rounded by itself:
    kernels give these bits.
    """
    args = tensor, base, coupling, by
    device = tensor.device.type
    kernel = find("round_columns", (by.fmt,), device, args)
    run = run_reference(_round_columns, device, args) if kernel is None else kernel.run(*args)
    return Rounded(*run)


def _round_columns(
    tensor: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    fmt, qparams = by.format, by.qparams
    assert qparams is not None
    pending = tensor.clone()
    codes = torch.empty(tensor.shape, dtype=fmt.element.code_dtype, device=tensor.device)
    values, errors = torch.empty_like(tensor, dtype=torch.float32), torch.empty_like(tensor)
    for j in range(tensor.shape[0]):
        own = slice(j, j + 1)
        part = _row(qparams, own)
        codes[own] = reference.quantize(pending[own].float(), part, fmt)
        values[own] = reference.dequantize(codes[own], part, fmt, torch.float32)
        errors[own] = (pending if base is None else base)[own] - values[own]
        pending[j + 1 :] -= errors[own] * coupling[j, j + 1 :, None]
    return codes, values, errors


def _row(qparams: QParams, own: slice) -> QParams:
    """The parts of one row; a table belongs to all."""
    rows = {name: p[own] for name, p in qparams._asdict().items() if p is not None}
    return QParams(**(rows | {"book": qparams.book}))
