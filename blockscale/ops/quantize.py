"""The functions people call on tensors: quantize, fake_quantize, choose_qparams."""

from functools import lru_cache

import torch
from torch import Tensor

from blockscale.core.block import divided
from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import TwoLevel
from blockscale.ops import primitives
from blockscale.ops.seed import Seed, seed_tensor
from blockscale.ops.tensor import QTensor, describe, dtype_name


def choose_qparams(x: Tensor, fmt: str | Format) -> "tuple[Tensor | QTensor, Tensor | None]":
    """x [...] -> the scale and zero point (None when symmetric) that `quantize` would choose.

    Raises TypeError for a dtype other than float32, bfloat16, float16 and ValueError for a format
    that does not parse or a block that does not fit x (docs/numerics.md, section 3).
    """
    q = quantize(x, parse(fmt).deterministic)
    return q.scale, q.zero_point


def quantize(
    x: Tensor,
    fmt: str | Format,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
) -> QTensor:
    """x [...] in `fmt`; x chooses the scale unless one is given (as stored, see QTensor.scale).

    seed: for stochastic rounding; an int, (seed, index of the first element), the same as an
        int64 tensor, or None for one from torch's default generator.
    Raises TypeError for dtypes, ValueError for formats, blocks and scales that do not fit.
    """
    form = parse(fmt)
    text = form.spelling
    _check_tensor(x)
    if x.requires_grad:
        x = x.detach()  # codes have no gradient; fake_quantize has one
    if scale is None and zero_point is None:
        packed, *parts = primitives.choose_quantize(x, text, _seed(form, seed, x))
        qparams = primitives.from_list(parts, form)
    else:
        qparams = given(form, tuple(x.shape), scale, zero_point)
        packed = primitives.quantize(x, quantizer(qparams, text, _seed(form, seed, x)))
    return QTensor(packed, qparams, form, x.shape[-1] if x.ndim else 1)


def fake_quantize(
    x: Tensor,
    fmt: str | Format,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
) -> Tensor:
    """x [...] -> its values after a round trip through `fmt`, in x's dtype.

    The gradient is straight-through: 1 where x is in range, 0 where it saturates (section 5 of
    docs/numerics.md). Arguments and errors as in `quantize`.
    """
    form = parse(fmt)
    _check_tensor(x)
    qparams = None
    if scale is not None or zero_point is not None:
        qparams = given(form, tuple(x.shape), scale, zero_point)
    by = quantizer(qparams, form.spelling, _seed(form, seed, x))
    values: Tensor = primitives.fake_quantize(x, by)
    return values


def given(
    fmt: Format,
    shape: tuple[int, ...],
    scale: "Tensor | QTensor | None",
    zero_point: Tensor | None,
) -> QParams:
    """A caller's scale and zero point for a tensor of `shape`, checked against the format."""
    if scale is None:
        raise ValueError(f"{fmt}: a zero_point was given without the scale it belongs to")
    outer = None
    if isinstance(fmt.scale, TwoLevel):
        if not isinstance(scale, QTensor) or scale.format != fmt.scale.inner:
            raise ValueError(
                f"{fmt}: its scale is a QTensor of format {fmt.scale.inner}, not {describe(scale)}"
            )
        codes, outer = scale.codes, scale.qparams.scale
        if tuple(outer.shape) != _scale_shape(fmt.scale.inner, tuple(codes.shape)):
            raise ValueError(f"{fmt}: {scale} has an outer scale of shape {tuple(outer.shape)}")
        scale = codes
    if not isinstance(scale, Tensor):
        raise ValueError(f"{fmt}: its scale is a Tensor, not {describe(scale)}")
    expected, dtype = _scale_shape(fmt, shape), _scale_dtype(str(fmt))
    if tuple(scale.shape) != expected or scale.dtype != dtype:
        raise ValueError(
            f"{fmt}: for a tensor of shape {shape} the stored scale is "
            f"{dtype_name(dtype)} of shape {expected}, not {describe(scale)}"
        )
    if fmt.asym != (zero_point is not None):
        raise ValueError(f"{fmt}: {'needs a' if fmt.asym else 'has no'} zero_point")
    if zero_point is not None and (
        not isinstance(zero_point, Tensor)
        or tuple(zero_point.shape) != expected
        or zero_point.dtype != torch.int32
    ):
        raise ValueError(
            f"{fmt}: the zero_point is int32 of shape {expected}, not {describe(zero_point)}"
        )
    return QParams(scale, outer, zero_point)


def _scale_shape(fmt: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    if torch.compiler.is_compiling() or {*map(type, shape)} != {int}:  # symbols have no hash
        return divided(shape, _sizes(str(fmt), len(shape)))
    return _known_scale_shape(str(fmt), shape)


def _sizes(fmt: str, rank: int) -> tuple[int, ...]:
    """Not traced: Dynamo cannot call the methods of an object that a cache made."""
    return parse(fmt).block.sizes_for(rank)


def _scale_dtype(fmt: str) -> torch.dtype:
    return parse(fmt).scale.dtype


# What torch.compiler.assume_constant_result does, which imports all of Dynamo.
for _each in (_sizes, _scale_dtype):
    setattr(_each, "_dynamo_marked_constant", True)  # noqa: B010 (no type has it)


@lru_cache(1024)
def _known_scale_shape(fmt: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return parse(fmt).block.scale_shape(shape)


def _check_tensor(x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor, found a {type(x).__name__}: torch.as_tensor makes one")


def _seed(fmt: Format, seed: Seed, x: Tensor) -> Tensor | None:
    return seed_tensor(seed, x.device) if fmt.rounding == "stochastic" else None
