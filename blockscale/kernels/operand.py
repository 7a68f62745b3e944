# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of a call as kernels of every backend take them: what fits a format, and new memory.

`device` is the one that a call runs on; None stands for the CPU, whose calls are short, so that
asking a tensor whether it lies there has to cost little.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core.block import Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.reference import FLOATS, QParams
from blockscale.core.scales import TwoLevel

Device = torch.device | None
Shape = Callable[[Sequence[int]], tuple[int, ...]]


class Storage:
    """How tensors of a format lie in memory (docs/numerics.md, section 6).

    bits:         of one code
    bytewise:     codes are stored as they are, not packed
    needs_seed:        rounding needs a seed
    scale_shape:  the shape of a tensor -> that of its stored scale; raises ValueError if the block
                  does not fit
    outer_shape:  the shape of a stored scale -> that of its own scale; None without two levels
    zero_dtype, outer_dtype: of zero points and of outer scales, where there are some
    offset_dtype: of the offsets, which kernels take one for each block; None without them
    """

    scale_shape: Shape
    outer_shape: Shape | None

    def __init__(self, fmt: Format):
        self.format = fmt
        self.bits = fmt.bits
        self.bytewise = fmt.bits in (8, 16)
        self.asym = fmt.asym
        self.needs_seed = fmt.rounding == "stochastic"
        self.packed_dtype = packed_dtype(fmt.element)
        self._packed_size = lru_cache(1024)(partial(packed_size, fmt.element))
        self.scale_dtype = fmt.scale.dtype
        self.offset_dtype = None if fmt.offset is None else fmt.offset.dtype
        self.scale_shape = _cached_shape(fmt.block)
        self.zero_dtype = torch.int32 if fmt.zero is None else fmt.zero.dtype
        self.outer_shape, self.outer_dtype = None, torch.float32
        if isinstance(fmt.scale, TwoLevel):
            self.outer_dtype = fmt.scale.outer_type.dtype
            self.outer_shape = _cached_shape(fmt.scale.inner.block)

    def new_parts(self, shape: Sequence[int], device: Device = None) -> QParams:
        """Memory for the scale of a tensor of `shape` and what goes with it, uninitialized."""
        blocks = self.scale_shape(shape)
        scale = new(blocks, self.scale_dtype, device)
        outer = None
        if self.outer_shape is not None:
            outer = new(self.outer_shape(blocks), self.outer_dtype, device)
        zero_point = new(blocks, self.zero_dtype, device) if self.asym else None
        if self.offset_dtype is None:
            return QParams(scale, outer, zero_point)
        return QParams(scale, outer, zero_point, new(blocks, self.offset_dtype, device))

    def new_packed(self, shape: Sequence[int], device: Device = None) -> Tensor:
        """Memory for the packed codes of a tensor of `shape`, uninitialized."""
        return new(self.packed_shape(shape), self.packed_dtype, device)

    def new_patterns(self, shape: Sequence[int], device: Device = None) -> Tensor:
        """Memory for codes [*shape] before they are packed, one an entry: uint8 or int16."""
        return new(shape, torch.uint8 if self.bits <= 8 else torch.int16, device)

    def packed_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of the packed codes of a tensor of `shape`."""
        shape = shape if len(shape) else (1,)
        if self.bytewise:
            return shape
        return (*shape[:-1], self._packed_size(shape[-1]))

    def checked_codes(
        self, packed: Tensor, shape: tuple[int, ...], device: Device = None
    ) -> Tensor:
        """Packed codes of a tensor of `shape`, in order. Raises ValueError if they are not that."""
        expected = self.packed_shape(shape)
        there = packed.is_cpu if device is None else packed.device == device
        if there and packed.dtype is self.packed_dtype and packed.shape == expected:
            return in_order(packed)
        raise ValueError(
            f"{self.format}: codes of shape {shape} are packed as {self.packed_dtype} of shape "
            f"{expected} on {_place(device)}, found {packed.dtype} of shape "
            f"{tuple(packed.shape)} on {packed.device}"
        )

    def checked_parts(
        self,
        shape: Sequence[int],
        scale: Tensor,
        zero_point: Tensor | None,
        outer: Tensor | None,
        device: Device = None,
        more: Sequence[Tensor] | None = None,
    ) -> QParams:
        """A caller's scale for a tensor of `shape`, in order. Raises ValueError if it misfits."""
        expected = self.scale_shape(shape)
        if (
            self.asym != (zero_point is not None)
            or (self.outer_shape is None) != (outer is None)
            or (self.offset_dtype is not None) != (len(more or ()) == 1)
        ):
            every = (*QParams(scale, outer, zero_point), *(more or ()))
            raise ValueError(f"{self.format}: expected {self._parts(expected)}, found {every}")
        scale = self._check_part(scale, self.scale_dtype, expected, device)
        if self.outer_shape is not None:
            assert outer is not None
            outer = self._check_part(outer, self.outer_dtype, self.outer_shape(expected), device)
        if zero_point is not None:
            zero_point = self._check_part(zero_point, self.zero_dtype, expected, device)
        if self.offset_dtype is None or not more:
            return QParams(scale, outer, zero_point)
        offset = self._check_part(more[0], self.offset_dtype, expected, device)
        return QParams(scale, outer, zero_point, offset)

    def checked_seed(self, seed: Tensor | None, *, anywhere: bool = False) -> Tensor | None:
        """The seed of stochastic rounding, int64 [] or [2], or None where none is needed.

        It lies on the CPU, or `anywhere`. Raises ValueError if it is missing or something else.
        """
        if not self.needs_seed:
            return None
        if seed is None:
            raise ValueError(f"{self.format}: stochastic rounding needs a seed")
        away = not anywhere and not seed.is_cpu
        if seed.dtype != torch.int64 or seed.numel() not in (1, 2) or away:
            raise ValueError(
                f"a seed is int64 of shape [] or [2]{'' if anywhere else ' on the CPU'}, not "
                f"{seed.dtype} {tuple(seed.shape)} on {seed.device}"
            )
        return seed

    def _check_part(
        self, part: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: Device
    ) -> Tensor:
        there = part.is_cpu if device is None else part.device == device
        if there and part.dtype is dtype and part.shape == shape:
            return in_order(part)
        raise ValueError(
            f"{self.format}: expected {dtype} of shape {tuple(shape)} on {_place(device)}, found "
            f"{part.dtype} of shape {tuple(part.shape)} on {part.device}"
        )

    def _parts(self, shape: Sequence[int]) -> str:
        parts = ["a scale"] + ["an outer scale"] * (self.outer_shape is not None)
        parts += ["a zero point"] * self.asym + ["an offset"] * (self.offset_dtype is not None)
        return f"{', '.join(parts)} for blocks {tuple(shape)}"


def _cached_shape(block: Block) -> Shape:
    shape: Any = lru_cache(1024)(block.scale_shape)  # torch.Size has a hash
    return shape


def _place(device: Device) -> str:
    return "the CPU" if device is None else str(device)


def present_parts(parts: QParams) -> list[Tensor]:
    """The parts that there are, in the order scale, outer, zero point: what ops return."""
    return [part for part in parts if part is not None]


def new(shape: Sequence[int], dtype: torch.dtype, device: Device = None) -> Tensor:
    """Memory for a tensor [*shape], uninitialized."""
    if device is None and shape:
        return torch.empty(*shape, dtype=dtype)  # half the time of `torch.empty(shape, …)`
    if device is None:
        return torch.empty((), dtype=dtype)
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def in_order(x: Tensor, alignment: int = 0) -> Tensor:
    """x, contiguous and at a multiple of `alignment` bytes; 0 stands for the size of its elements.

    x itself where it is that already, else a copy.
    """
    if not x.is_contiguous():
        return x.contiguous()
    return x if x.data_ptr() % (alignment or x.itemsize) == 0 else x.clone()


def strided_like(x: Tensor, values: Tensor) -> Tensor:
    """`values`, which are contiguous and of x's shape, with the strides of torch.empty_like(x).

    Those are what a graph was told of the result of an op that returns values like x.
    """
    if x.is_contiguous():
        return values
    expected = torch.empty_like(x)
    return values if values.stride() == expected.stride() else expected.copy_(values)


# Attention over a cache, ops.attention.cached_attention.

MOST_QUERIES = 64  # that share a head of keys: with more, what is decoded once pays
_MASKS = (torch.bool, *FLOATS)


def tokens_of(keys: Operand) -> tuple[int, ...]:
    """[batch, heads, tokens, depth] of keys in codes, also of those per channel."""
    shape = tuple(keys.shape)
    if len(shape) != 5:
        return shape
    batch, heads, chunks, depth, chunk = shape
    return batch, heads, chunks * chunk, depth


def few_queries(arguments: tuple[Any, ...]) -> bool:
    """Whether the op's arguments fit each other, and few queries share a head of keys."""
    query, keys, values, recent_keys, recent_values, mask, _scaling, *more = arguments
    past = tokens_of(keys)
    if any(x.dtype not in FLOATS for x in (query, recent_keys, recent_values)):
        return False
    if query.ndim != 4 or not query.numel() or len(past) != 4 or not keys.codes.numel():
        return False
    batch, heads, new, depth = query.shape
    _, shared, tokens, _ = past
    recent = recent_keys.shape[-2]
    each = [
        (past, (batch, shared, tokens, depth)),
        (values.shape, (batch, shared, tokens, values.size)),
        (recent_keys.shape, (batch, shared, recent, depth)),
        (recent_values.shape, (batch, shared, recent, values.size)),
    ]
    if any(tuple(shape) != expected for shape, expected in each):
        return False
    sinks = more[0] if more else None
    if sinks is not None and (tuple(sinks.shape) != (heads,) or sinks.dtype not in FLOATS):
        return False
    if heads % shared or new * (heads // shared) > MOST_QUERIES:
        return False
    if mask is None:
        return bool(recent >= new)
    scores = (batch, heads, new, tokens + recent)[-mask.ndim :] if mask.ndim else ()
    fits = mask.ndim <= 4 and all(
        n in (1, size) for n, size in zip(mask.shape, scores, strict=True)
    )
    return fits and mask.dtype in _MASKS


def added_scores(mask: Tensor | None, scores: tuple[int, ...]) -> Tensor | None:
    """What a mask adds to scores [batch, heads, rows, keys], float32, as a view of that shape."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)
    return mask.to(torch.float32).expand(scores)
