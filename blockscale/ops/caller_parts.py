# SPDX-License-Identifier: BSD-3-Clause
"""Scales, zero points and offsets that a caller gives, checked against a format and a shape."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from blockscale.core.block import Block, block_counts, block_of, read_block
from blockscale.core.format import Format
from blockscale.core.operand import part_names
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.ops.tensor import QTensor, describe, dtype_name


def format_of(fmt: Format, shape: tuple[int, ...], scale: "Tensor | QTensor | None") -> Format:
    """The format with the block that a caller's scale has in a tensor of `shape`.

    A scale that fits the format's own block leaves it. A scale of one element is that of the whole
    tensor; one of the tensor's rank whose sizes divide the tensor's defines the block. What is
    neither stays for `checked_parts` to refuse.
    """
    if not isinstance(scale, Tensor | QTensor):
        return fmt
    results = tuple(scale.shape)
    one = all(size == 1 for size in results)
    if (not one or _fits(str(fmt), len(shape))) and results == _scale_shape(fmt, shape):
        return fmt
    if one:
        return parse(_with_block(str(fmt), "tensor"))
    if len(results) != len(shape) or any(
        count < 1 or n % count for n, count in zip(shape, results, strict=True)
    ):
        return fmt
    return parse(_with_block(str(fmt), str(block_of(shape, results))))


def plain_parts(
    fmt: Format, shape: tuple[int, ...], scale: object, zero_point: object, offset: object
) -> QParams | None:
    """What `checked_parts` says of the usual case, a scale alone that fits the format; else None.

    It takes 1 µs of a call that takes 8.
    """
    if zero_point is not None or offset is not None or type(scale) is not Tensor:
        return None
    if torch.compiler.is_compiling() or {*map(type, shape)} != {int}:
        return None
    expected = _fitting(fmt.spelling, shape)
    fits = expected is not None and (scale.dtype, scale.shape) == expected["scale"]
    return QParams(scale) if fits and len(expected) == 1 else None  # type: ignore[arg-type]


@lru_cache(1024)
def _fitting(fmt: str, shape: tuple[int, ...]) -> "Stored | None":
    """As `_known`; None for a block that does not fit the shape."""
    try:
        return _stored(fmt, shape)
    except ValueError:
        return None


def checked_parts(
    fmt: Format,
    shape: tuple[int, ...],
    scale: "Tensor | QTensor | None",
    zero_point: Tensor | None,
    offset: "Tensor | QTensor | None" = None,
) -> QParams:
    """A caller's parts for a tensor of `shape`. Raises ValueError if they do not fit the format.

    Parts of one element may have any rank.
    """
    if scale is None:
        what = "a zero_point" if zero_point is not None else "an offset"
        raise ValueError(f"{fmt}: {what} was passed without its scale")
    parts: dict[str, Tensor | None] = {}
    parts["scale"], inner = _open_codes(fmt, "scale", scale)
    if inner is not None:
        parts["outer"], parts["scale_offset"] = inner.scale, inner.offset
    parts["zero_point"] = zero_point
    if offset is not None and fmt.offset is not None:
        parts["offset"], inner = _open_codes(fmt, "offset", offset)
        parts["offset_outer"] = None if inner is None else inner.scale
    elif offset is not None:
        raise ValueError(f"{fmt}: has no offset: leave it out")
    expected = _expected(str(fmt), shape)
    for name in ("zero_point", "offset"):
        if (parts.get(name) is None) == (name in expected):
            verb = f"needs {_a(name)}" if name in expected else f"has no {name}"
            raise ValueError(f"{fmt}: {verb}")
    data = {
        name: checked_part(fmt, shape, name, parts.get(name), dtype, own)
        for name, (dtype, own) in expected.items()
    }
    return QParams(**data)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _open_codes(
    fmt: Format, name: str, part: "Tensor | QTensor"
) -> tuple[Tensor | None, QParams | None]:
    """A scale or an offset -> what is stored of it, and the parts of its own format."""
    inner = _inner(str(fmt), name)
    if inner is None:
        return part, None  # type: ignore[return-value]
    if not isinstance(part, QTensor) or str(part.format) != inner:
        raise ValueError(
            f"{fmt}: its {name} must be a QTensor of format {inner}, found {describe(part)}"
        )
    codes = part.codes
    return codes if codes.dtype == torch.uint8 else part.format.element.to_bits(codes), part.qparams


def checked_part(
    fmt: Format,
    shape: tuple[int, ...],
    name: str,
    part: Tensor | None,
    dtype: torch.dtype,
    expected: tuple[int, ...],
) -> Tensor:
    """A part of that name, of `dtype` and the `expected` shape; of one element, in any rank.

    Raises ValueError for anything else.
    """
    if not isinstance(part, Tensor) and name == "scale":
        raise ValueError(f"{fmt}: its scale must be a Tensor, found {describe(part)}")
    if isinstance(part, Tensor) and part.dtype == dtype and tuple(part.shape) == expected:
        return part
    one = isinstance(part, Tensor) and all(size == 1 for size in (*expected, *part.shape))
    if isinstance(part, Tensor) and part.dtype == dtype and one:
        return part.reshape(expected)
    what = "the stored scale" if name == "scale" else f"the {name}"
    raise ValueError(
        f"{fmt}: for a tensor of shape {shape} {what} must be {dtype_name(dtype)} of shape "
        f"{expected}, found {describe(part)}"
    )


def _scale_shape(fmt: Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    return _expected(str(fmt), shape)["scale"][1]


_DIVIDES = {"outer": "scale", "scale_offset": "scale", "offset_outer": "offset"}
Stored = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def _expected(fmt: str, shape: tuple[int, ...]) -> Stored:
    if not torch.compiler.is_compiling() and {*map(type, shape)} == {int}:  # symbols have no hash
        return _stored(fmt, shape)
    stored: Stored = {}
    for name in part_names(fmt):
        if name == "book":  # no blocks share it out
            stored[name] = torch.float32, (_values(fmt),)
            continue
        of = _DIVIDES.get(name)
        counts = block_counts(stored[of][1] if of else shape, _sizes(fmt, name, len(shape)))
        stored[name] = _dtype(fmt, name), counts
    return stored


@lru_cache(1024)
def _stored(fmt: str, shape: tuple[int, ...]) -> Stored:
    return parse(fmt).stored(shape)


# What follows is not traced: Dynamo cannot call the methods of an object that a cache made.


def _dtype(fmt: str, name: str) -> torch.dtype:
    form = parse(fmt)
    return _layout(form)[name][0]


def _sizes(fmt: str, name: str, rank: int) -> tuple[int, ...]:
    return _layout(parse(fmt))[name][1].sizes_for(rank)


def _fits(fmt: str, rank: int) -> bool:
    """Whether a tensor of this rank can have the format's blocks."""
    try:
        parse(fmt).block.scale_shape((1,) * rank)
    except ValueError:
        return False
    return True


def _values(fmt: str) -> int:
    return 1 << parse(fmt).bits


def _layout(form: Format) -> dict[str, tuple[torch.dtype, Block]]:
    """{part: its dtype, and the block that each of its entries stands for}."""
    scale, offset = form.scale, form.offset
    data = {"scale": (scale.dtype, form.block)}
    if isinstance(scale, TwoLevel):
        inner = scale.inner
        data["outer"] = inner.scale.dtype, inner.block
        if inner.offset is not None:
            data["scale_offset"] = inner.offset.dtype, inner.offset.block or inner.block
    if form.asym:
        data["zero_point"] = form.zero.dtype if form.zero else torch.int32, form.block
    if offset is not None:
        data["offset"] = offset.dtype, offset.block or form.block
        if offset.inner is not None:
            data["offset_outer"] = offset.inner.scale.dtype, offset.inner.block
    return data


def _inner(fmt: str, name: str) -> str | None:
    """The spelling of the format that the scales or offsets of a format are codes of."""
    form = parse(fmt)
    if name == "scale":
        return str(form.scale.inner) if isinstance(form.scale, TwoLevel) else None
    return str(form.offset.inner) if form.offset is not None and form.offset.inner else None


def _with_block(fmt: str, block: str) -> str:
    return str(replace(parse(fmt), block=read_block(block)))


# What torch.compiler.assume_constant_result does, which imports all of Dynamo.
for _each in (_fits, _dtype, _sizes, _values, _inner, _with_block):
    setattr(_each, "_dynamo_marked_constant", True)  # noqa: B010 (no type has it)
