# SPDX-License-Identifier: BSD-3-Clause
"""Parts of quantized tensors, cut from codes and scales: rows, and the matrices of a stack."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from blockscale.core.block import WHOLE, Block
from blockscale.core.format import Format
from blockscale.core.joined_weights import of_matrix
from blockscale.core.operand import Operand, Quantizer, operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel

# Parts of a quantized tensor along its first dimension, cut from codes and scales as they are.


def rows_of(whole: Operand, start: int, stop: int) -> Operand | None:
    """Rows start to stop (not included) of a quantized tensor [n, ...]: views, nothing is copied.

    None where blocks do not end there, or are not made of whole rows.
    """
    fmt, count = whole.format, whole.shape[0]
    if _is_inseparable(fmt) or not 0 <= start <= stop <= count:
        return None
    parts: dict[str, Any] = {}
    for name, part in whole.qparams._asdict().items():
        height = _height(name, fmt, len(whole.shape))
        if part is None or height == WHOLE:
            parts[name] = part
        elif start % height or (stop % height and stop != count):
            return None
        else:
            parts[name] = part[start // height : -(-stop // height)]
    return operand(whole.codes[start:stop], QParams(**parts), fmt, whole.size)


def stacked(whole: Operand, count: int) -> Operand | None:
    """A quantized tensor [count * n, k] as a stack [count, n, k]: views, nothing is copied.

    None where its blocks do not end with the matrices, or mean something else in a stack.
    """
    fmt, (n, _) = whole.format, whole.shape
    blocks = _blocks(fmt)
    if n % count or _is_inseparable(fmt) or not all(map(_of_last, blocks)):
        return None
    parts: dict[str, Any] = {}
    for name, part in whole.qparams._asdict().items():
        height = 1 if part is None else _height(name, fmt, 2)
        if height == WHOLE or n // count % height:
            return None
        parts[name] = None if part is None else _apart(part, count)
    return operand(_apart(whole.codes, count), QParams(**parts), fmt, whole.size)


def _apart(part: Any, count: int) -> Any:
    return part.view(count, part.shape[0] // count, *part.shape[1:])


def _blocks(fmt: Format) -> list[Block]:
    """The blocks of a format's scale, and of what its scale and its offset have besides."""
    inner = [fmt.scale.inner.block] if isinstance(fmt.scale, TwoLevel) else []
    offset = fmt.offset
    inner += [offset.block] if offset is not None and offset.block is not None else []
    return [fmt.block, *inner]


def _is_inseparable(fmt: Format) -> bool:
    """Whether rows cannot be told apart: flat blocks, a learned table, an offset's own scales."""
    quantized = fmt.offset is not None and fmt.offset.inner is not None
    return quantized or fmt.element.learned or any(block.flat for block in _blocks(fmt))


def _height(name: str, fmt: Format, rank: int) -> int:
    """How many rows share a number of the part `name` of a tensor of this rank; WHOLE for all."""
    if name == "offset" and fmt.offset is not None and fmt.offset.block is not None:
        return fmt.offset.block.sizes_for(rank)[0]
    height = fmt.block.sizes_for(rank)[0]
    if name in ("outer", "scale_offset") and isinstance(fmt.scale, TwoLevel):
        return height * fmt.scale.inner.block.sizes_for(rank)[0]  # of scales; WHOLE is 0
    return height


def _of_last(block: Block) -> bool:
    """Whether a block means the same in the last dimensions of any tensor."""
    return block.rest == 1 and all(dim < 0 for dim, _ in block.sizes)


# The matrices of a stack [E, n, k], each of which is asked for by itself.

MOST_PARTS = 8  # a matrix of more parts stays one, whose scales kernels restate

_PARTS = "parts"
_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()  # {codes: (what they were cut with, {key: cut})}


def _memoize(whole: Operand, key: int | str, make: Callable[[Operand], Any]) -> Any:
    """What `make` cuts of a tensor, kept while its codes live: kernels keep what they make of it.

    It gets the same memory by other tensors: views of the tensor's own would keep it alive.
    """
    codes, more = whole.codes, whole.more or ()
    if codes.is_inference() or torch.compiler.is_compiling():
        return make(whole)
    beside = (*whole[1:4], *more)
    value: Any = _KEPT.get(codes)  # type: ignore[no-untyped-call]
    if value is None or not _same(value[0], (codes.data_ptr(), whole.fmt), beside):
        refs = tuple(None if part is None else ref(part) for part in beside)
        value = _KEPT[codes] = ((codes.data_ptr(), whole.fmt), refs), {}
    cuts: dict[int | str, Any] = value[1]
    if key not in cuts:
        cuts[key] = make(_detach(whole))
    return cuts[key]


def _same(value: Any, place: tuple[int, str], beside: Sequence[Tensor | None]) -> bool:
    """Whether cuts were made of these very tensors."""
    refs = value[1]
    return value[0] == place and all(
        part is None if each is None else each() is part
        for each, part in zip(refs, beside, strict=True)
    )


def _detach(whole: Operand) -> Operand:
    apart = [None if part is None else part.detach() for part in whole.qparams]
    return operand(whole.codes.detach(), QParams(*apart), whole.format, whole.size)  # type: ignore[arg-type]


def matrix(whole: Operand, index: int) -> Operand | None:
    """Matrix `index` of a stack [E, ..., n, k]: views of its codes and scales, nothing is copied.

    None where a number belongs to several of the matrices, but not to all.
    """
    operand: Operand | None = _memoize(whole, index, lambda whole: _matrix(whole, index))
    return operand


def _matrix(whole: Operand, index: int) -> Operand | None:
    fmt, shape = whole.format, whole.shape
    if len(shape) < 3 or not _stack_apart(fmt, shape):
        return None
    count = shape[0]
    parts = {}
    for name, part in whole.qparams._asdict().items():
        if part is None or name == "book":
            parts[name] = part
        elif not fmt.block.flat or count == 1:
            parts[name] = part[index if part.shape[0] == count else 0]
        else:  # [1, ..., count * blocks of a matrix]
            parts[name] = part.reshape(count, *part.shape[1:-1], -1)[index]
    own = of_matrix(fmt, shape) if len(shape) == 3 else fmt
    return operand(whole.codes[index], QParams(**parts), own, whole.size)


def _stack_apart(fmt: Format, shape: Sequence[int]) -> bool:
    """Whether each number of the format belongs to one matrix of the stack, or to all."""
    elements = shape[-1] * shape[-2]
    sizes = tuple(shape)

    def alone(block: Block, of: tuple[int, ...]) -> bool:
        if block.flat:
            return not block.strided and elements % block.flat == 0 and block is fmt.block
        return of[0] == 1 or block.sizes_for(len(of))[0] in (1, WHOLE)

    levels = [(fmt.block, sizes)]
    scales = fmt.block.scale_shape(sizes)
    if isinstance(fmt.scale, TwoLevel):
        levels.append((fmt.scale.inner.block, scales))
        inner = fmt.scale.inner.offset
        levels += [(inner.block, scales)] if inner is not None and inner.block else []
    if fmt.offset is not None:
        own = fmt.offset.block or fmt.block
        levels.append((own, sizes))
        levels += [(fmt.offset.inner.block, own.scale_shape(sizes))] if fmt.offset.inner else []
    return all(alone(block, of) for block, of in levels)


def parts(one: Operand) -> tuple[Operand, ...]:
    """A matrix [n, k] in as few parts [n / P, k] as have one number each where it has P, of whole
    rows: kernels know `nvfp4` with one outer scale. A matrix that needs no parts is its only one.
    """
    n, k = one.shape
    height = _stack_height(one.fmt, n, k)
    if n % height or not 1 < n // height <= MOST_PARTS:
        return (one,)
    operands: tuple[Operand, ...] = _memoize(one, _PARTS, lambda one: _parts(one, height))
    return operands


def _parts(one: Operand, height: int) -> tuple[Operand, ...]:
    results = []
    for start in range(0, one.shape[0], height):
        rows = rows_of(one, start, start + height)
        if rows is None:
            return (one,)
        results.append(rows._replace(fmt=of_matrix(rows.format, rows.shape).spelling))
    return tuple(results)


@lru_cache(1024)
def _stack_height(spelling: str, n: int, k: int) -> int:
    """How many whole rows share a number that not all share; n where there is none."""
    fmt = parse(spelling)
    results = []
    if _several_dims(fmt.block):
        high, wide = fmt.block.sizes_for(2)
        results += [high] if wide in (WHOLE, k) else []
    if isinstance(fmt.scale, TwoLevel) and _several_dims(fmt.scale.inner.block):
        rows, columns = fmt.block.scale_shape((n, k))
        high, wide = fmt.scale.inner.block.sizes_for(2)
        results += [high * n // rows] if wide in (WHOLE, columns) and n % rows == 0 else []
    return max((height for height in results if 1 < height < n), default=n or 1)


def _several_dims(block: Block) -> bool:
    """Whether a block is of the kind that kernels of matrices take restated."""
    return block.name.startswith("block")


class Parts(NamedTuple):
    """How all matrices of a stack are cut: into `number` parts [n / number, k] in `fmt` each."""

    fmt: str
    number: int


_PARTS_OF: dict[tuple[str, tuple[int, ...]], Parts | None] = {}


def parts_of(whole: Operand) -> Parts | None:
    """Into what `matrix` and `parts` cut a stack, which its format and its shape alone say. None
    as `matrix`, and for what is no stack of matrices."""
    key = whole.fmt, tuple(whole.codes.shape)
    if key not in _PARTS_OF:
        one = matrix(whole, 0) if whole.codes.ndim == 3 and whole.codes.shape[0] else None
        of = () if one is None else parts(one)
        _PARTS_OF[key] = Parts(of[0].fmt, len(of)) if of else None
    return _PARTS_OF[key]


# Which rows of x [rows, k] go to which matrix of a stack: those of matrix e end before row ends[e].


def check_ends(x: Tensor, whole: Operand, ends: Tensor) -> None:
    """Raise ValueError for sizes that do not fit. Nothing waits for numbers on a GPU."""
    count, shape = whole.codes.shape[0], tuple(x.shape)
    if whole.codes.ndim != 3:
        raise ValueError(
            f"grouped_linear: expected a stack [E, n, k], found a tensor of {whole.shape}"
        )
    if x.ndim != 2 or shape[1] != whole.size:
        raise ValueError(f"grouped_linear: expected x of shape [rows, {whole.size}], found {shape}")
    if ends.dtype not in (torch.int32, torch.int64) or tuple(ends.shape) != (count,):
        raise ValueError(
            f"grouped_linear: the ends of {count} matrices are int32 or int64 of shape ({count},), "
            f"found {ends.dtype} of shape {tuple(ends.shape)}"
        )
    if ends.device != x.device:
        raise ValueError(f"grouped_linear: x is on {x.device}, its ends on {ends.device}")
    if ends.device.type == "cpu":
        check_places(ends.tolist(), shape[0])


def check_places(places: Sequence[int], rows: int) -> None:
    """Raise ValueError for ends that do not rise, or that lie outside of x."""
    before = 0
    for index, end in enumerate(places):
        if not before <= end <= rows:
            raise ValueError(
                f"grouped_linear: the rows of matrix {index} would be {before} to {end} of "
                f"{rows}: ends rise from 0 to at most the number of rows, as cumulative sums of "
                "tokens per expert do"
            )
        before = end


def groups(ends: Tensor) -> Iterator[tuple[int, int, int]]:
    """(matrix, first row, row after the last) of each matrix that has rows."""
    start = 0
    for index, end in enumerate(ends.tolist()):
        if end > start:
            yield index, start, end
            start = end


def quantizer_of(by: Quantizer, index: int) -> Quantizer:
    """How the rows of one matrix are quantized."""
    if by.scale is None or by.scale.ndim < 3:
        return by
    scale, zero_point, outer = (None if part is None else part[index] for part in by[:3])
    more = None if by.more is None else [part[index] for part in by.more]
    return Quantizer(scale, zero_point, outer, by.fmt, by.seed, more)
