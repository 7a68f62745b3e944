"""Products of a stack of matrices [E, n, k], each of which is asked for by itself.

Nothing is done for the matrices that no row of x goes to: not a code of theirs is read.
"""

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from blockscale.core.block import WHOLE, Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand, operand
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel
from blockscale.core.weights.stack import of_matrix
from blockscale.ops import cut
from blockscale.ops.linear import linear
from blockscale.ops.primitives import dequantize

MOST_PARTS = 8  # matrices of more parts are one for kernels, which then restate their scales

Parts = dict[int, tuple[Operand, ...]]
_PARTS: WeakIdKeyDictionary = WeakIdKeyDictionary()  # {codes: (their scales' place, Parts)}


def matrix(whole: Operand, index: int) -> Operand | None:
    """Matrix `index` of a stack [E, ..., n, k]: views of its codes and scales, nothing is copied.

    None where its numbers are not its own, as under one scale for the whole stack.
    """
    fmt, shape = whole.format, whole.shape
    if len(shape) < 3 or not _apart(fmt, shape):
        return None
    count = shape[0]
    parts = {}
    for name, part in whole.qparams._asdict().items():
        if part is None or name == "book":
            parts[name] = part
        elif part.shape[0] == count:
            parts[name] = part[index]
        else:  # flat blocks: [1, ..., count * blocks of a matrix]
            parts[name] = part.reshape(count, *part.shape[1:-1], -1)[index]
    own = of_matrix(fmt, shape) if len(shape) == 3 else fmt
    return operand(whole.codes[index], QParams(**parts), own, whole.size)


def _apart(fmt: Format, shape: Sequence[int]) -> bool:
    """Whether no number of the format belongs to two matrices of the stack."""
    elements = shape[-1] * shape[-2]
    sizes = tuple(shape)

    def alone(block: Block, of: tuple[int, ...]) -> bool:
        if block.flat:
            return not block.strided and elements % block.flat == 0 and block is fmt.block
        return of[0] == 1 or block.sizes_for(len(of))[0] == 1

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


def parts_of(one: Operand) -> tuple[Operand, ...]:
    """A matrix [n, k] in as few parts [n / P, k] as have one number each where it has P, of whole
    rows: kernels know `nvfp4` with one outer scale. A matrix that needs no parts is its only one.
    """
    n, k = one.shape
    height = max(_heights(one.format, n, k), default=n)
    if n % height or n // height > MOST_PARTS:
        return (one,)
    cuts = [cut.rows(one, at, at + height) for at in range(0, n, height)]
    if any(each is None for each in cuts):
        return (one,)
    return tuple(
        each._replace(fmt=of_matrix(each.format, each.shape).spelling)
        for each in cuts
        if each is not None
    )


def _heights(fmt: Format, n: int, k: int) -> list[int]:
    """Of the numbers that several whole rows share, but not all: how many rows do."""
    if fmt.block.flat:
        return []
    high, wide = fmt.block.sizes_for(2)
    found = [high] if wide in (WHOLE, k) else []
    if isinstance(fmt.scale, TwoLevel) and not fmt.scale.inner.block.flat:
        rows, columns = fmt.block.scale_shape((n, k))
        inner_high, inner_wide = fmt.scale.inner.block.sizes_for(2)
        found += [inner_high * high] if inner_wide in (WHOLE, columns) else []
    return [height for height in found if height not in (WHOLE, 1) and height < n]


def parts(whole: Operand, index: int) -> tuple[Operand, ...] | None:
    """`parts_of` matrix `index`, kept while the stack lives: kernels keep what they make of each.

    None where the matrix's numbers are not its own.
    """
    codes = whole.codes
    if codes.is_inference() or torch.compiler.is_compiling():
        return _cut(whole, index)
    place = tuple(None if part is None else ref(part) for part in (*whole[1:4], *(whole.more or ())))
    known = _PARTS.get(codes)
    if known is None or known[0] != (place, codes.data_ptr(), whole.fmt):
        known = _PARTS[codes] = (place, codes.data_ptr(), whole.fmt), {}
    cuts: Parts = known[1]
    if index not in cuts:
        found = _cut(_detached(whole), index)
        if found is None:
            return None
        cuts[index] = found
    return cuts[index]


def _cut(whole: Operand, index: int) -> tuple[Operand, ...] | None:
    one = matrix(whole, index)
    return None if one is None else parts_of(one) if len(one.shape) == 2 else (one,)


def _detached(whole: Operand) -> Operand:
    """The same memory by other tensors: views of the stack's own would keep it alive."""
    given = {name: None if part is None else part.detach() for name, part in whole.qparams._asdict().items()}
    return operand(whole.codes.detach(), QParams(**given), whole.format, whole.size)  # type: ignore[arg-type]


def product(x: Tensor, of: Sequence[Operand], bias: Tensor | None = None) -> Tensor:
    """x [..., k] times each part [n / P, k] of a matrix -> [..., n]."""
    if len(of) == 1:
        y: Tensor = linear(x, of[0], bias)
        return y
    rows = of[0].codes.shape[0]
    biases = [None] * len(of) if bias is None else list(bias.split(rows))
    return torch.cat([linear(x, each, own) for each, own in zip(of, biases, strict=True)], -1)


def grouped(x: Tensor, whole: Operand, ends: Sequence[int]) -> Tensor | None:
    """x [rows, k], sorted by matrix, those of matrix e ending before row `ends[e]` -> [rows, n].

    Rows after the last end belong to no matrix and give 0. None as `matrix`.
    """
    y = x.new_zeros(x.shape[0], whole.shape[-2])
    start = 0
    for index, end in enumerate(ends):
        if end > start:
            of = parts(whole, index)
            if of is None:
                return None
            y[start:end] = product(x[start:end], of)
            start = end
    return y


def each(x: Tensor, whole: Operand, chosen: Tensor) -> Tensor | None:
    """x [S, rows, k], chosen [S] -> [S, rows, n]: x[i] times matrix chosen[i]. None as `matrix`."""
    y = x.new_zeros(*x.shape[:-1], whole.shape[-2])
    for index in chosen.unique().tolist():
        of = parts(whole, index)
        if of is None:
            return None
        mine = chosen == index
        y[mine] = product(x[mine], of)
    return y


def values(whole: Operand, chosen: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The matrices chosen [...] in floats [..., n, k]; each is dequantized once. None as `matrix`."""
    several, place = chosen.unique(return_inverse=True)
    dense = []
    for index in several.tolist():
        one = matrix(whole, index)
        if one is None:
            return None
        dense.append(dequantize(one, dtype))
    if not dense:
        return torch.empty(*chosen.shape, *whole.shape[1:], dtype=dtype, device=whole.codes.device)
    return torch.stack(dense)[place]
