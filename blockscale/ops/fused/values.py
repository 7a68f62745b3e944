# SPDX-License-Identifier: BSD-3-Clause
"""From what fused ops take to floats, and from floats to what they give.

The primitives are run, not called: a fused op is below torch's dispatcher already, and to ask again
whether anybody listens would cost as much as a small tensor does.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import FIRST, Quantizer, Value, part_names
from blockscale.ops import shapes
from blockscale.ops.primitives import choose_quantize, dequantize, quantize


class Needs(NamedTuple):
    """Which parts stand beside the codes of a format, and how many further ones."""

    outer: bool
    zero_point: bool
    further: int


@cache
def needs(fmt: str) -> Needs:
    """Of the format that `fmt` spells."""
    names = part_names(fmt)
    further = sum(name not in FIRST for name in names)
    return Needs("outer" in names, "zero_point" in names, further)


def floats(value: Value, dtype: torch.dtype, wide: bool) -> Tensor:
    """Codes as values of `dtype`; floats as they are or, for `wide`, as values of `dtype`."""
    if value.fmt:
        values: Tensor = dequantize.run(value.operand, dtype)
        return values
    return widened(value.data, dtype) if wide else value.data


def widened(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats as values of `dtype`; others, as masks and indices, as they are."""
    if tensor.dtype is dtype or not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype)


def empty(value: Value, dtype: torch.dtype, wide: bool) -> Tensor:
    """An empty tensor as `floats` gives it."""
    if value.fmt:
        return value.data.new_empty(value.operand.shape, dtype=dtype)
    return widened(value.data, dtype) if wide else value.data


def quantized(y: Tensor, by: Quantizer) -> list[Tensor]:
    """[y], contiguous, or [codes], or [codes, *parts] under a scale of its own."""
    if not by.fmt:
        return [y.contiguous()]
    if by.scale is None:
        outputs: list[Tensor] = choose_quantize.run(y, by.fmt, by.seed)
        return outputs
    return [quantize.run(y, by)]


def empty_quantized(y: Tensor, by: Quantizer) -> list[Tensor]:
    """Empty tensors as `quantized` gives them."""
    if not by.fmt:
        return [y.new_empty(y.shape)]
    if by.scale is None:
        return shapes.choose_quantize(y, by.fmt, by.seed)
    return [shapes.packed(y, by.format)]


def precise(dtype: torch.dtype, first: Tensor) -> AbstractContextManager[Any]:
    """Float32 arithmetic stays float32; others are as torch computes them."""
    return float32_inside(first) if dtype == torch.float32 else nullcontext()


def check_value(op: str, name: str, value: Value) -> None:
    """Raise ValueError for codes without what their format needs, and floats that have some."""
    if not value.fmt:
        if value.scale is not None:
            raise ValueError(
                f"{op}: {name} has a scale and no format: pass the format of its codes, or "
                "leave the scale out for floats"
            )
        return
    if value.scale is None:
        raise ValueError(
            f"{op}: {name} holds codes in {value.fmt} without a scale: pass the scale that "
            "they were quantized with, or an empty format for floats"
        )
    _check_parts(op, name, value)


def check_quantizer(op: str, by: Quantizer) -> None:
    """Raise ValueError for a result whose scale and format do not belong together."""
    if by.scale is None:
        if by.zero_point is not None or by.outer is not None or by.more:
            raise ValueError(
                f"{op}: its result has a zero point or an outer scale but no scale: pass the "
                "scale too, or none of them (each result then chooses its own)"
            )
        return
    if not by.fmt:
        raise ValueError(
            f"{op}: its result has a scale and no format: pass the format too, or neither"
        )
    _check_parts(op, "its result", by)


def _check_parts(op: str, name: str, value: Value | Quantizer) -> None:
    """Raise ValueError unless the parts beside the scale are those that the format has."""
    needs_of, more = needs(value.fmt), value.more
    if (
        (value.zero_point is None) is needs_of.zero_point
        or (value.outer is None) is needs_of.outer
        or (len(more) if more else 0) != needs_of.further
    ):
        names = ", ".join(part_names(value.fmt))
        present = ["scale", *(p for p in ("zero_point", "outer") if getattr(value, p) is not None)]
        present += [f"{len(more)} more"] if more else []
        raise ValueError(
            f"{op}: {name} in {value.fmt} needs the parts {names}; found {', '.join(present)}"
        )
