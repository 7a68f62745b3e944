# SPDX-License-Identifier: BSD-3-Clause
"""Element by element, of two tensors or of one and a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused

# Several tensors become one: each may have a format of its own.


@fused(aten=("cat.default", "concat.default", "concatenate.default"))
def cat(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors one behind the other along a dimension.

    Tensors [...] of one size but along `dim` -> all of them.
    """
    return torch.cat(tensors, dim)


@fused(aten=("stack.default",))
def stack(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors beside each other along a new dimension.

    Tensors [...] of one size -> all of them, along a dimension that is new.
    """
    return torch.stack(tensors, dim)


@fused(aten=("add.Tensor",))
def add(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """a + alpha * b: a [...], b [...] that broadcast -> their sum."""
    return torch.add(a, b, alpha=alpha)


@fused(aten=("add.Scalar", "add.Tensor a other alpha"))
def add_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """a + alpha * a number: a [...] -> the same plus a number."""
    return torch.add(a, other, alpha=alpha)


@fused(aten=("div.Tensor",))
def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b: a [...], b [...] that broadcast -> their quotient."""
    return torch.div(a, b)


@fused(aten=("div.Scalar", "div.Tensor a other"))
def div_scalar(a: Tensor, *, other: float) -> Tensor:
    """a / a number: a [...] -> the same divided by a number."""
    return torch.div(a, other)


@fused(aten=("masked_fill.Scalar",))
def masked_fill(a: Tensor, *, mask: Tensor, value: float) -> Tensor:
    """A number where a mask holds, else a.

    a and a bool mask that broadcast -> a, but the number where the mask holds.
    """
    return torch.masked_fill(a, mask, value)


@fused(aten=("maximum.default", "max.other"))
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of a and b.

    a [...], b [...] that broadcast -> the larger of each two; NaN where one is.
    """
    return torch.maximum(a, b)


@fused(aten=("minimum.default", "min.other"))
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of a and b.

    a [...], b [...] that broadcast -> the smaller of each two; NaN where one is.
    """
    return torch.minimum(a, b)


@fused(aten=("mul.Tensor",))
def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b: a [...], b [...] that broadcast -> their product."""
    return torch.mul(a, b)


@fused(aten=("mul.Scalar", "mul.Tensor a other"))
def mul_scalar(a: Tensor, *, other: float) -> Tensor:
    """a * a number: a [...] -> the same times a number."""
    return torch.mul(a, other)


@fused(ulps=4, aten=("pow.Tensor_Tensor",))
def pow(a: Tensor, b: Tensor) -> Tensor:  # noqa: A001  (torch's name)
    """a to the power of b: a [...], exponents b [...] that broadcast -> powers."""
    return torch.pow(a, b)


@fused(ulps=4, aten=("pow.Tensor_Scalar",))
def pow_scalar(a: Tensor, *, exponent: float) -> Tensor:
    """a to the power of a number: a [...] -> its powers."""
    return torch.pow(a, exponent)


@fused(aten=("rsub.Scalar",))
def rsub_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """A number - alpha * a: a [...] -> a number minus a."""
    return torch.rsub(a, other, alpha=alpha)


@fused(aten=("sub.Tensor", "rsub.Tensor b a alpha"))
def sub(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """a - alpha * b: a [...], b [...] that broadcast -> their difference."""
    return torch.sub(a, b, alpha=alpha)


@fused(aten=("sub.Scalar", "sub.Tensor a other alpha"))
def sub_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """a - alpha * a number: a [...] -> the same minus a number."""
    return torch.sub(a, other, alpha=alpha)


@fused(aten=("where.self condition a b",))
def where(a: Tensor, b: Tensor, *, condition: Tensor) -> Tensor:
    """a where a condition holds, else b.

    a, b and a bool condition that broadcast -> of each two, the one that it says.
    """
    return torch.where(condition, a, b)


@fused(aten=("where.ScalarOther condition a other",))
def where_scalar(a: Tensor, *, condition: Tensor, other: float) -> Tensor:
    """a where a condition holds, else a number.

    a and a bool condition that broadcast -> a, or the number.
    """
    return torch.where(condition, a, other)
