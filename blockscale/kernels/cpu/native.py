"""What the native kernels take: a Format as numbers, tensors as addresses that were checked."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import Block
from blockscale.core.format import Format
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import TwoLevel
from blockscale.kernels.cpu import _native
from blockscale.kernels.numbers import FormatNumbers, lowered

# Positions in the enumerations of src/spec.h.
_FAMILIES = ("integer", "minifloat", "binary")
_SCALES = ("fp32", "fp16", "bf16", "pow2", "e8m0", "two_level")
_STATISTICS = ("magnitude", "high", "range", "mean", "mean_above")
_ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up", "stochastic")
assert set(_ROUNDINGS) == set(ROUNDINGS)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Parts = tuple[int, int, int]  # addresses of scale, outer, zero point; 0 for none
threads = torch.get_num_threads


class Native:
    """A format as the kernels take it, and the few facts about it that they are asked for."""

    handle: Any  # the _native.NativeFormat

    def __init__(self, fmt: Format):
        self.format = fmt
        inner: Native | None = None
        if isinstance(fmt.scale, TwoLevel):
            inner = native(fmt.scale.inner.spelling)
        block = [number for pair in fmt.block.sizes for number in pair]
        of_inner = None if inner is None else inner.handle
        self.handle = _native.NativeFormat(_numbers(lowered(fmt)), block, fmt.block.rest, of_inner)
        self.packed_dtype = packed_dtype(fmt.element)
        self._packed_size = lru_cache(1024)(partial(packed_size, fmt.element))
        self.bits = fmt.bits
        self.bytewise = self.bits in (8, 16)  # codes are stored as they are
        self.scale_dtype = fmt.scale.dtype
        self.asym = fmt.asym
        self.drawn = fmt.rounding == "stochastic"
        # The shape of the stored scale of a shape. Raises ValueError if the block does not fit.
        self.scale_shape = _cached_shape(fmt.block)
        self.outer_shape = None if inner is None else inner.scale_shape  # and of the outer one

    def new_parts(self, shape: Sequence[int]) -> QParams:
        """Memory for the scale of a tensor of `shape`, uninitialized."""
        shape = self.scale_shape(shape)
        scale = new(shape, self.scale_dtype)
        outer = None
        if self.outer_shape is not None:
            outer = new(self.outer_shape(shape), torch.float32)
        zero_point = new(shape, torch.int32) if self.asym else None
        return QParams(scale, outer, zero_point)

    def new_packed(self, shape: Sequence[int]) -> Tensor:
        """Memory for the packed codes of a tensor of `shape`."""
        return new(self.packed_shape(shape), self.packed_dtype)

    def packed_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of the packed codes of a tensor of `shape`."""
        shape = shape if len(shape) else (1,)
        if self.bytewise:
            return shape
        return (*shape[:-1], self._packed_size(shape[-1]))

    def packs(self, shape: Sequence[int]) -> bool:
        """Whether rows of codes fill whole bytes, so that kernels pack as they go."""
        return self.bytewise or len(shape) < 2 or shape[-1] * self.bits % 8 == 0

    def new_patterns(self, shape: Sequence[int]) -> Tensor:
        """Memory for codes before they are packed."""
        return new(shape, torch.uint8 if self.bits <= 8 else torch.int16)

    def given_parts(
        self,
        shape: Sequence[int],
        scale: Tensor,
        zero_point: Tensor | None,
        outer: Tensor | None,
    ) -> QParams:
        """A caller's scale for a tensor of `shape`. Raises ValueError if it does not fit."""
        expected = self.scale_shape(shape)
        if self.asym != (zero_point is not None) or (self.outer_shape is None) != (outer is None):
            given = QParams(scale, outer, zero_point)
            raise ValueError(f"{self.format}: expected {self._expected(expected)}, found {given}")
        scale = self._fitting(scale, self.scale_dtype, expected)
        if self.outer_shape is not None:
            assert outer is not None
            outer = self._fitting(outer, torch.float32, self.outer_shape(expected))
        if zero_point is not None:
            zero_point = self._fitting(zero_point, torch.int32, expected)
        return QParams(scale, outer, zero_point)

    def _fitting(self, part: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if part.dtype != dtype or part.shape != shape or not part.is_cpu:
            raise ValueError(
                f"{self.format}: expected {dtype} of shape {tuple(shape)} on the CPU, found "
                f"{part.dtype} of shape {tuple(part.shape)} on {part.device}"
            )
        return in_order(part)

    def _expected(self, shape: Sequence[int]) -> str:
        parts = ["a scale"] + ["an outer scale"] * (self.outer_shape is not None)
        return ", ".join(parts + ["a zero point"] * self.asym) + f" for blocks {tuple(shape)}"


def _cached_shape(block: Block) -> Callable[[Sequence[int]], tuple[int, ...]]:
    shape: Any = lru_cache(1024)(block.scale_shape)  # torch.Size has a hash
    return shape


@cache
def native(spelling: str) -> Native:
    """The format of this name or spelling for the kernels."""
    return Native(parse(spelling))


def addresses(parts: QParams) -> Parts:
    """Where the parts lie; whoever calls keeps them alive."""
    scale, outer, zero_point = parts
    return (
        scale.data_ptr(),
        0 if outer is None else outer.data_ptr(),
        0 if zero_point is None else zero_point.data_ptr(),
    )


def new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a tensor, uninitialized."""
    if not shape:
        return torch.empty((), dtype=dtype)
    return torch.empty(*shape, dtype=dtype)  # half the time of `torch.empty(shape, …)`


def in_order(x: Tensor) -> Tensor:
    """x, contiguous and aligned to its elements: itself if it is, else a copy."""
    if not x.is_contiguous():
        return x.contiguous()
    return x if x.data_ptr() % x.itemsize == 0 else x.clone()


def floats(x: Tensor) -> tuple[Tensor, int]:
    """x in order, and its dtype's number. Raises TypeError as the reference does.

    Raises ValueError for a tensor that is not on the CPU.
    """
    if not x.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, found one on {x.device}")
    kind = DTYPES.get(x.dtype)
    if kind is None:
        reference.widen(x)
        raise AssertionError("the reference takes a dtype that the kernels do not")
    return in_order(x), kind


def seed_words(native: Native, seed: Tensor | None) -> tuple[int, int]:
    """The seed and the index of the first element; 0, 0 where none is needed."""
    if not native.drawn:
        return 0, 0
    if seed is None:
        raise ValueError(f"{native.format}: stochastic rounding needs a seed")
    if seed.dtype != torch.int64 or not seed.is_cpu or seed.numel() not in (1, 2):
        raise ValueError(f"a seed is int64 of shape [] or [2] on the CPU, not {seed}")
    key, *first = seed.reshape(-1).tolist()
    return key, first[0] if first else 0


def _numbers(n: FormatNumbers) -> list[float]:
    """The fields of `Spec` in src/spec.h, in order; NativeFormat reads them."""
    e = n.element
    return [
        _FAMILIES.index(e.family), e.bits, e.signed, e.low, e.high, e.mbits, e.bias,
        e.smallest_normal, e.max_code, e.nan, e.infinity,
        _STATISTICS.index(n.statistic),
        _SCALES.index(n.scale),
        n.nearest,
        n.threshold,
        n.emax,
        n.fraction_bits,
        n.levels,
        e.low if n.full else 0.0,
        e.high if n.full else 0.0,
        n.asym,
        n.recip,
        n.poisons,
        _ROUNDINGS.index(n.rounding),
        n.outer_levels,
    ]  # fmt: skip
