# SPDX-License-Identifier: BSD-3-Clause
"""The functions people call on tensors: quantize, fake_quantize, choose_qparams."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.core.profiles import Profile
from blockscale.core.profiles import codes as profiles
from blockscale.core.reference import QParams
from blockscale.core.untrusted import kind_of
from blockscale.ops import primitives
from blockscale.ops.caller_parts import checked_parts, format_of, plain_parts
from blockscale.ops.seed import Seed, seed_tensor
from blockscale.ops.tensor import QTensor


def choose_qparams(x: Tensor, fmt: str | Format) -> "tuple[Tensor | QTensor, Tensor | None]":
    """x [...] -> the scale and zero point (None when symmetric) that `quantize` chooses in `fmt`.

    Raises TypeError for a dtype other than float32, bfloat16, float16 and ValueError for a format
    that does not parse or a block that does not fit x (docs/numerics.md, section 3).
    """
    q = quantize(x, parse(fmt).deterministic)
    return q.scale, q.zero_point


def quantize(
    x: Tensor,
    fmt: str | Format | Profile,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
    *,
    offset: "Tensor | QTensor | None" = None,
) -> QTensor:
    """x [...] in `fmt`; x chooses the scale unless one is given (as stored, see QTensor.scale).

    fmt: a format or its spelling; or a profile (bs.profile), which chooses scale and codes as its
        producer does: then none is given.
    scale: one of the format's own blocks; or of one element, which is that of the whole tensor; or
        of x's rank with sizes that divide x's: the result's format then has the blocks that these
        are. It may have any sign and be 0 (docs/numerics.md, 1.3).
    zero_point, offset: as stored, where the format has them, with the scale.
    seed: for stochastic rounding; an int, (seed, index of the first element), the same as an
        int64 tensor, or None for one from torch's default generator.
    Raises TypeError for dtypes, ValueError for formats, blocks and scales that do not fit.
    """
    if isinstance(fmt, Profile):
        if not fmt.contract:
            return _by_profile(x, fmt, scale, zero_point, offset)
        fmt = fmt.format
    form = parse(fmt)
    text = form.spelling
    _check_tensor(x)
    if x.requires_grad:
        x = x.detach()  # codes have no gradient; fake_quantize has one
    if scale is None and zero_point is None and offset is None:
        packed, *parts = primitives.choose_quantize(x, text, _seed(form, seed, x))
        qparams = primitives.from_list(parts, form)
    else:
        form, qparams = _caller_parts(form, tuple(x.shape), scale, zero_point, offset)
        packed = primitives.quantize(x, quantizer(qparams, form.spelling, _seed(form, seed, x)))
    return QTensor(packed, qparams, form, x.shape[-1] if x.ndim else 1)


def _by_profile(x: Tensor, profile: Profile, *parts: object) -> QTensor:
    _check_tensor(x)
    if any(part is not None for part in parts):
        raise ValueError(f"profile {profile} chooses the scale itself: leave scale out")
    codes, qparams, form = profiles.quantize(x.detach(), profile)
    packed = pack(codes, form.element).contiguous()
    return QTensor(packed, qparams, form, x.shape[-1] if x.ndim else 1)


def fake_quantize(
    x: Tensor,
    fmt: str | Format,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
    *,
    offset: "Tensor | QTensor | None" = None,
) -> Tensor:
    """x [...] -> its values after a round trip through `fmt`, in x's dtype.

    The gradient is straight-through: 1 where x is in range, 0 where it saturates (section 5 of
    docs/numerics.md). scale, zero_point, offset and seed are as in `quantize`, and so are errors.
    """
    form = parse(fmt)
    _check_tensor(x)
    qparams = None
    if scale is not None or zero_point is not None or offset is not None:
        form, qparams = _caller_parts(form, tuple(x.shape), scale, zero_point, offset)
    by = quantizer(qparams, form.spelling, _seed(form, seed, x))
    values: Tensor = primitives.fake_quantize(x, by)
    return values


def _caller_parts(
    fmt: Format,
    shape: tuple[int, ...],
    scale: "Tensor | QTensor | None",
    zero_point: Tensor | None,
    offset: "Tensor | QTensor | None",
) -> tuple[Format, QParams]:
    """The format with the block of a given scale, and the parts; raises ValueError."""
    usual = plain_parts(fmt, shape, scale, zero_point, offset)
    if usual is not None:
        return fmt, usual
    fmt = format_of(fmt, shape, scale)
    return fmt, checked_parts(fmt, shape, scale, zero_point, offset)


def _check_tensor(x: object) -> None:
    if not isinstance(x, Tensor):
        advice = "convert it with torch.as_tensor"
        if isinstance(x, nn.Module):
            advice = "a model is quantized in place by bs.quantize_(model, recipe)"
        elif isinstance(x, Mapping):
            advice = "pass its tensors one at a time, or load them into a model for bs.quantize_"
        raise TypeError(f"expected a tensor, found {kind_of(x)}: {advice}")
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested tensor" if x.is_nested else f"{str(x.layout).removeprefix('torch.')} tensor"
        raise TypeError(
            f"expected a dense tensor, found a {kind} of shape {tuple(_sizes(x))}: pass "
            f"{'each of its parts, x.unbind()' if x.is_nested else 'x.to_dense()'}"
        )


def _sizes(x: Tensor) -> list[object]:
    return ["*"] * x.ndim if x.is_nested else list(x.shape)


def _seed(fmt: Format, seed: Seed, x: Tensor) -> Tensor | None:
    return seed_tensor(seed, x.device) if fmt.rounding == "stochastic" else None
