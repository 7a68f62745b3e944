# SPDX-License-Identifier: BSD-3-Clause
"""A quantized tensor in another format with the same values: codes move, scales stay, or it stops.

    (code - zero_point) * step   -> another zero point, none, or offset = -zero_point * step
    code * step, signed          -> unsigned with the zero point in the middle
    code * step + offset         -> a zero point, where offset is a whole number of steps
    scales of blocks             -> scales of smaller blocks, each repeated
    scales in one float type     -> in another that holds every one of them
    scale / G, scale * outer     -> each other, where every step stays the same

Nothing is rounded: a number that its new place does not hold ends it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.reference import QParams
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.export.conversion.same_numbers import meaning
from blockscale.export.to_compressed_tensors.tensors import reciprocal
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

_SLAB = 1 << 18  # elements that are moved at a time: they stay in the cache


class InexactError(ValueError):
    """A tensor that another format cannot hold without changing a value."""


class CodesNeededError(Exception):
    """Whether a tensor can be carried depends on its codes, which are on the meta device."""


def obstacle(source: Format, target: Format, shape: Sequence[int]) -> str | None:
    """Why no tensor of `found` could have the same values as `wanted`; None where some can."""
    if meaning(source) == meaning(target):
        return None
    if other_direction(source, target):
        return None
    if not isinstance(source.element, Integer) or not isinstance(target.element, Integer):
        if source.element.name != target.element.name:
            return f"codes of {source.element.name} are not codes of {target.element.name}"
        if not _plain_scales(source) or not _plain_scales(target):
            return f"scales in {source.scale} are not scales in {target.scale}"
    elif not isinstance(target.scale, FloatScale) or (target.offset and target.offset.inner):
        return f"scales in {source.scale} are not scales in {target.scale}"
    elif source.zero is not None and target.offset is None:
        return "zero points that are not integers cannot be stored"
    if target.bits < source.bits:
        return f"codes of {source.bits} bits do not fit into {target.bits}"
    if not nested(source.block, target.block, shape):
        return f"blocks {source.block} are not made of blocks {target.block}"
    return None


def certain(source: Format, target: Format) -> bool:
    """Whether every tensor of `source` can be stored as `target` with the same values."""
    if meaning(source) == meaning(target):
        return True
    same = isinstance(source.scale, FloatScale) and source.scale == target.scale
    if not same or source.zero is not None or target.offset is not None:
        return False
    if source.offset is not None:
        return False
    integers = isinstance(source.element, Integer) and isinstance(target.element, Integer)
    if not integers or not source.asym or target.asym:
        return True
    return target.bits > source.bits


def carry(q: QTensor, target: Format) -> QTensor:
    """`q` in the format `target`, with the same values. Raises InexactError where none has them.

    Codes on the meta device stay there; CodesNeededError is raised where they decide.
    """
    result = q.format
    if reason := obstacle(result, target, q.shape):
        raise InexactError(reason)
    if meaning(result) == meaning(target):
        return QTensor(q.packed, q.qparams, target, q.size)
    if other_direction(result, target):
        if (other := invert_outer(q, target)) is None:
            raise InexactError("no reciprocal of its outer scale gives every step exactly")
        return other
    steps = _steps(q)
    assert isinstance(target.scale, FloatScale)
    cast = _cast(steps, target.scale.dtype, "scales")
    scale = finer(cast, result.block, target.block, q.shape)
    if not isinstance(result.element, Integer):
        return QTensor(q.packed, QParams(scale), target, q.size)
    return _of_integers(q, target, steps, scale)


def _of_integers(q: QTensor, target: Format, steps: Tensor, scale: Tensor) -> QTensor:
    block = q.format.block  # as large as the target's blocks, or larger
    if q.format.offset is not None and q.format.offset.block not in (None, block):
        block, steps = target.block, finer(steps, block, target.block, q.shape)
    zero, offset = _zero_and_offset(q, block, steps)
    low, high = _range(target)
    shift = low - _range(q.format)[0]
    if target.offset is None and not target.asym:
        packed = _without_zero(q, target, zero, block)
        return QTensor(packed, QParams(scale), target, q.size)
    if target.asym:
        zeros = zero + shift
        if zeros.numel() and (int(zeros.min()) < low or int(zeros.max()) > high):
            raise InexactError(
                f"its zero points reach from {int(zeros.min())} to {int(zeros.max())}, more "
                "than the layout holds"
            )
        zeros = finer(zeros.expand(steps.shape), block, target.block, q.shape).contiguous()
        packed = _shifted(q, target, shift)
        return QTensor(packed, QParams(scale, zero_point=zeros), target, q.size)
    assert target.offset is not None
    if offset is None:
        offset = -(zero + shift).to(torch.float64) * steps.to(torch.float64)
        _check_sums(steps, zero + shift, offset, target)
    cast = _cast(offset, target.offset.dtype, "offsets").expand(steps.shape)
    offsets = finer(cast, block, target.block, q.shape).contiguous()
    packed = _shifted(q, target, shift)
    return QTensor(packed, QParams(scale, offset=offsets), target, q.size)


def _zero_and_offset(q: QTensor, block: Block, steps: Tensor) -> tuple[Tensor, Tensor | None]:
    """Zero points int32 of `block`s, and offsets where there are any (zero is 0 then).

    Offsets that are whole numbers of steps are zero points as well: both are given.
    """
    stored, offset = q.zero_point, q.offset
    if offset is not None:
        values = offset.dequantize() if isinstance(offset, QTensor) else offset.to(torch.float32)
        values = finer(values, q.format.offset.block or q.format.block, block, q.shape)  # type: ignore[union-attr]
        return _whole_steps(values, steps), values
    if stored is None:
        return torch.zeros((), dtype=torch.int32), None
    zero = stored.to(torch.int32)
    if stored.is_floating_point() and not torch.equal(zero.to(stored.dtype), stored):
        raise InexactError("its zero points are not integers")
    return finer(zero, q.format.block, block, q.shape), None


def _check_sums(steps: Tensor, zero: Tensor, offset: Tensor, target: Format) -> None:
    """Raise InexactError where code * step + offset is rounded otherwise than (code - zero) * step.

    Nothing is rounded where steps leave the last bits of float32 to the codes, as those of 16 bits.
    """
    last = steps.view(torch.int32) & (1 << target.bits) - 1
    if not bool(last.any()):
        return
    low, high = _range(target)
    wide = offset.to(torch.float32)
    for code in range(low, high + 1):
        if not torch.equal(code * steps + wide, (code - zero) * steps):
            raise InexactError(
                "with scales of 24 bits, code * scale + offset rounds differently from (code "
                "- zero point) * scale"
            )


def _whole_steps(offset: Tensor, steps: Tensor) -> Tensor:
    """-offset / step where all of these are integers; else a value that nothing takes."""
    wide, step = -offset.to(torch.float64), steps.to(torch.float64)
    zero = torch.where(step == 0, 0.0, wide / step).round().clamp(-(2**20), 2**20)
    if torch.equal(zero * step, wide):
        return zero.to(torch.int32)
    return torch.full_like(zero, 2**20, dtype=torch.int32)


def _without_zero(q: QTensor, target: Format, zero: Tensor, block: Block) -> Tensor:
    """Packed codes from which zero points of `block`s are subtracted.

    Raises InexactError beyond the range, CodesNeededError where codes on the meta device decide.
    """
    (low, high), (first, last) = _range(target), _range(q.format)
    least, most = (int(zero.min()), int(zero.max())) if zero.numel() else (0, 0)
    if most >= 2**20:
        raise InexactError("its offsets are not whole multiples of its steps")
    if target.bits == q.format.bits and least == most == first - low:
        return _shifted(q, target, low - first)
    safe = first - most >= low and last - least <= high  # whatever the codes are
    size = q.size
    if q.packed.is_meta:
        if not safe:
            raise CodesNeededError
        row = packed_size(target.element, size)
        return q.packed.new_empty((*q.shape[:-1], row), dtype=packed_dtype(target.element))
    packed = q.packed.reshape(-1, q.packed.shape[-1])
    rows = _zeros_of_rows(zero, block, tuple(q.shape)).expand(packed.shape[0], -1, 1)
    dtype = torch.int8 if max(abs(least), abs(most), abs(first), abs(last)) < 64 else torch.int16
    results, step = [], max(1, _SLAB // max(size, 1))
    for i in range(0, packed.shape[0], step):
        codes = primitives.unpack(packed[i : i + step], str(q.format), size).to(dtype)
        zeros = rows[i : i + step].to(dtype)
        differences = (codes.unflatten(-1, (zeros.shape[1], -1)) - zeros).flatten(-2)
        if not safe and differences.numel():
            least, most = (int(each) for each in torch.aminmax(differences))
            if least < low or most > high:
                raise InexactError(
                    f"codes minus zero points reach from {least} to {most}, more than the "
                    "layout holds"
                )
        results.append(_packed(differences, target))
    return torch.cat(results).reshape(*q.shape[:-1], -1)


def _zeros_of_rows(zero: Tensor, block: Block, shape: tuple[int, ...]) -> Tensor:
    """Zero points [rows or 1, parts of a row, 1]."""
    if not zero.ndim:
        return zero.reshape(1, 1, 1)
    own = {-1: 0} | dict(block.sizes)
    if block.rest == 1 and not block.flat and shape[-1] % max(own[-1], 1) == 0 and len(own) == 1:
        return zero.reshape(-1, zero.shape[-1], 1)
    every = block.expand(zero, shape)
    return every.expand(*shape[:-1], -1).reshape(-1, every.shape[-1], 1)


def _shifted(q: QTensor, target: Format, shift: int) -> Tensor:
    """Packed codes, each with a number added."""
    if shift == 0 and target.bits == q.format.bits:
        return q.packed
    if 2 ** (target.bits - 1) == abs(shift) and target.bits == q.format.bits in (2, 4, 8):
        every = sum(abs(shift) << at for at in range(0, 8, target.bits))  # flips each highest bit
        codes = q.packed.view(torch.uint8) ^ every
        return codes.view(torch.int8) if target.bits == 8 and target.element.signed else codes
    return _packed(q.codes.to(torch.int16) + shift, target)


def _packed(codes: Tensor, target: Format) -> Tensor:
    packed: Tensor = primitives.pack(codes.to(target.element.code_dtype), str(target))
    return packed


def _range(fmt: Format) -> tuple[int, int]:
    """The least and the largest code that can be stored."""
    if fmt.element.name == "ternary":
        return -1, 1
    half = 2 ** (fmt.bits - 1)
    return (-half, half - 1) if fmt.element.signed else (0, 2 * half - 1)


def _steps(q: QTensor) -> Tensor:
    """Steps of blocks, float32."""
    scale = q.scale
    if isinstance(scale, QTensor):
        values: Tensor = scale.dequantize()
        return values
    how = q.format.scale
    if isinstance(how, PowerOfTwo):
        return how.step(scale, q.format.fraction_bits)
    if isinstance(how, CodeScale):
        return how.step(scale)
    return scale.to(torch.float32)


def _cast(numbers: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Numbers in another dtype. Raises InexactError where one would be rounded."""
    cast = numbers.to(dtype)
    wide = torch.promote_types(numbers.dtype, dtype)
    same = cast.to(wide) == numbers.to(wide)
    if not bool((same | numbers.isnan()).all()):
        wrong = int((~(same | numbers.isnan())).sum())
        name = str(dtype).removeprefix("torch.")
        raise InexactError(f"{wrong} of {numbers.numel()} {what} have no exact value in {name}")
    return cast


def _plain_scales(fmt: Format) -> bool:
    return isinstance(fmt.scale, FloatScale) and not fmt.asym and fmt.offset is None


# Blocks in smaller blocks: whether they are, and a number of each for each of the smaller ones.


def nested(outer: Block, inner: Block, shape: Sequence[int]) -> bool:
    """Whether each block of a tensor of `shape` is made of whole blocks `inner`."""
    if outer == inner or _flat_rows(outer, inner, shape):
        return True
    if outer.flat or inner.flat:
        return False
    try:
        pairs = zip(outer.sizes_for(len(shape)), inner.sizes_for(len(shape)), shape, strict=True)
    except ValueError:
        return False
    return all(_fits(large, small, n) for large, small, n in pairs)


def _flat_rows(one: Block, other: Block, shape: Sequence[int]) -> bool:
    """Whether one is of the flattened tensor, and the other of the same elements, within rows."""
    flat, rows = (one, other) if one.flat else (other, one)
    name = f"group{flat.flat}"
    return bool(flat.flat) and not flat.strided and str(rows) == name and shape[-1] % flat.flat == 0


def _fits(large: int, small: int, n: int) -> bool:
    large, small = large or n, small or n
    return min(large, n) == min(small, n) or large % small == 0 or large >= n


def finer(numbers: Tensor, outer: Block, inner: Block, shape: Sequence[int]) -> Tensor:
    """A number of each block -> of each of the smaller blocks in it."""
    if outer == inner:
        return numbers
    if outer.flat or inner.flat:
        return numbers.reshape(inner.scale_shape(shape))
    sizes = zip(outer.sizes_for(len(shape)), inner.sizes_for(len(shape)), shape, strict=True)
    for dim, (large, small, n) in enumerate(sizes):
        count = 1 if small == WHOLE else -(-n // small)
        if numbers.shape[dim] != count:
            numbers = _repeat(numbers, dim, count, small, large or n)
    return numbers


def _repeat(numbers: Tensor, dim: int, count: int, small: int, large: int) -> Tensor:
    times = large // small
    if large % small == 0 and count == numbers.shape[dim] * times:
        sizes = [-1] * (numbers.ndim + 1)
        sizes[dim + 1] = times
        return numbers.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1)
    place = torch.arange(count) * small // large
    return numbers.index_select(dim, place)


# NVFP4's scale of scales: multiplied by, or stored as its reciprocal and divided by.


def other_direction(source: Format, target: Format) -> bool:
    """Whether they differ only in how a scale of scales is stored, as it is or its reciprocal."""
    one, other = source.scale, target.scale
    if not isinstance(one, TwoLevel) or not isinstance(other, TwoLevel):
        return False
    alone = meaning(one.inner) == meaning(other.inner) and str(one.inner.block) == "tensor"
    same = meaning(source)[:2] == meaning(target)[:2] and one.inner.element.name == "e4m3"
    return alone and same and one.reciprocal != other.reciprocal


def invert_outer(q: QTensor, target: Format) -> QTensor | None:
    """With the reciprocal of the scale of scales, or the other way round; None if none is exact."""
    outer = q.qparams.outer
    assert outer is not None and isinstance(q.format.scale, TwoLevel)
    if q.format.scale.reciprocal:
        result, exact = multiplier(q.qparams.scale, outer)
    else:
        result, exact = reciprocal(q.qparams.scale, outer)
    if not exact:
        return None
    parts = q.qparams._replace(outer=result.reshape(outer.shape))
    return QTensor(q.packed, parts, target, q.size)


def multiplier(codes: Tensor, outer: Tensor) -> tuple[Tensor, bool]:
    """The float32 t with fl(s * t) = fl(s / outer) for every scale s, and whether there is one."""
    values = torch.unique(codes.reshape(-1)).view(torch.float8_e4m3fn).to(torch.float32)
    values = values[values.isfinite()]
    target = values / outer.reshape(())
    nearest = (1 / outer.to(torch.float64)).reshape(()).to(torch.float32)
    for step in sorted(range(-8, 9), key=abs):
        factor = (nearest.view(torch.int32) + step).view(torch.float32)
        if torch.equal(values * factor, target):
            return factor, True
    return nearest, False
