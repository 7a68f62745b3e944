# SPDX-License-Identifier: BSD-3-Clause
"""Views and pieces of a ReadTensor that keep its codes: nothing is dequantized for them.

Each handler gets the operator's arguments and returns its result, or None where only the floats
will do.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from blockscale.core import stacks
from blockscale.core.operand import UNQUANTIZED, Operand
from blockscale.core.pack import of_joined_stack
from blockscale.layers.weight_source import ReadTensor, RowFormat
from blockscale.ops import grouped_linear
from blockscale.ops.grouped_linear import waits
from blockscale.ops.primitives import dequantize

# Products with a stack of matrices that was read: one call for all of them (ops.grouped_linear).
#
# transformers has three ways through the experts of a layer. `eager` reads one expert after
# another, which are pieces of the stack. `grouped_mm` sorts the tokens by expert and multiplies by
# the whole stack; `batched_mm`, and Llama 4, give each token or each expert a product of its own.
# The handlers are those of blockscale.layers.weight_tensor, by the names of operators.


def _stack(weight: Any, x: Any) -> Operand | None:
    """The codes [E, n, k] of a stack [E, k, n] that x of its dtype is multiplied by."""
    if not isinstance(weight, ReadTensor) or isinstance(x, ReadTensor) or weight.ndim != 3:
        return None
    source = weight.source
    usable = source.transposed and x.dtype == source.dtype and x.device == source.device
    return source.operand if usable else None


def _grouped_mm(
    x: Any, weight: Any, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """RowFormat of x [rows, k], sorted by matrix; `offs` says where those of each end."""
    whole = _stack(weight, x)
    plain = bias is None and out_dtype in (None, x.dtype) and x.ndim == 2
    if whole is None or offs is None or not plain or _cannot_wait(x, whole):
        return None
    return sorted_product(x, whole, offs, weight.source.rows)


def sorted_product(x: Tensor, whole: Operand, ends: Any, rows: RowFormat | None) -> Tensor | None:
    """`grouped_linear` of x [rows, k] and a stack [E, n, k] -> [rows, n], x quantized as `rows`
    says. None where only the stack's floats will do."""
    by = UNQUANTIZED if rows is None else rows.of_each(x)
    if by is not None:
        return grouped_linear.grouped(x, whole, ends, by)
    stacks.check_ends(x, whole, ends)
    y = x.new_zeros(len(x), whole.shape[-2])
    for e, start, end in stacks.groups(ends):
        own = None if rows is None else rows.of(range(e, e + 1)).of_one(x[start:end])
        if own is None:
            return None
        one = grouped_linear.whole_matrix(whole, e)
        y[start:end] = grouped_linear.product(x[start:end], one, None, own)
    return y


def _is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph records this call: then what `offs` says must stay on the device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _cannot_wait(x: Tensor, whole: Operand) -> bool:
    """Whether a CUDA graph records this call, and no kernel takes the stack as a whole."""
    return _is_captured(x) and waits(x, whole)


def chosen_of(weight: Any, tensor: Tensor) -> Any:
    """weight[chosen], a matrix for each number: it keeps to codes until its floats are asked for.

    Then each of the matrices is dequantized once, and the others are not.
    """
    if not isinstance(weight, ReadTensor) or weight.ndim != 3 or tensor.device != weight.device:
        return None
    source = weight.source
    whole = source.operand
    if whole is None or source.layout not in ("plain", "transposed"):
        return None
    if whole.shape[0] and stacks.matrix(whole, 0) is None:
        return None
    if _cannot_wait(torch.empty(0, whole.size, dtype=source.dtype, device=tensor.device), whole):
        return None

    def floats() -> Tensor:
        if _is_captured(tensor):
            return source.floats()[tensor]
        values = grouped_linear.values(whole, tensor, source.dtype)
        assert values is not None  # of the same format as matrix 0
        return values.mT if source.transposed else values

    shape = torch.Size((*tensor.shape, *weight.shape[1:]))
    result = weight.view_of(shape, None, floats, transposed=False)
    result.chosen = (whole, tensor, source.transposed)
    return result


def _bmm(a: Any, b: Any) -> Any:
    """A product for each matrix: x @ weight, or weight @ x of chosen matrices."""
    if isinstance(a, ReadTensor):
        choice = _choice(a, b, transposed=False)
        y = None if choice is None else grouped_linear.each(b.mT, *choice, _by_rows(a))
        return None if y is None else y.mT
    choice = _choice(b, a, transposed=True)
    if choice is not None:
        return grouped_linear.each(a, *choice, _by_rows(b))
    whole = _stack(b, a)
    if whole is None:
        return None
    rows = a.shape[1]
    ends = torch.arange(1, len(a) + 1, device=a.device) * rows
    flat = sorted_product(a.reshape(-1, a.shape[2]), whole, ends, b.source.rows)
    return None if flat is None else flat.reshape(*a.shape[:2], -1)


def _by_rows(weight: Any) -> Callable[[Tensor, Operand, Tensor], Tensor | None]:
    rows = weight.source.rows
    return lambda x, whole, ends: sorted_product(x, whole, ends, rows)


def _choice(weight: Any, x: Any, *, transposed: bool) -> tuple[Operand, Tensor] | None:
    """What `chosen_of` knew of a tensor that it gave, if x can be multiplied by its matrices."""
    choice = getattr(weight, "chosen", None) if isinstance(weight, ReadTensor) else None
    if choice is None or isinstance(x, ReadTensor) or x.dtype != weight.dtype:
        return None
    whole, numbers, transposes = choice
    return (whole, numbers) if transposes == transposed and numbers.ndim == 1 else None


STACKS: dict[str, Callable[..., Any]] = {
    "aten::_grouped_mm": _grouped_mm,
    "transformers::grouped_mm_fallback": _grouped_mm,
    "aten::bmm": _bmm,
}

aten = torch.ops.aten


def _same(weight: Any, *_: Any, **__: Any) -> Any:
    return weight.again(weight.source)


def _view(weight: Any, size: Sequence[int]) -> Any:
    source, shape = weight.source, torch.empty(weight.shape, device="meta").view(tuple(size)).shape
    if shape == weight.shape:
        return _same(weight)
    joined = len(shape) == 3 and weight.ndim == 2 and shape[-1] == weight.shape[-1]
    if joined and source.operand is not None and shape[0] == of_joined_stack(source.layout):
        layout = {"transposed": True, "layout": "transposed"}  # as DBRX has the way back
        return weight.view_of(shape, source.operand, lambda: source.floats().view(shape), **layout)
    if not joined or source.operand is None or source.transposed or source.layout != "plain":
        return None
    whole = stacks.stacked(source.operand, shape[0])  # as DBRX has its experts
    return None if whole is None else _piece(weight, whole, shape)


def _transpose(weight: Any, first: int = 0, second: int = 1) -> Any:
    source, rank = weight.source, weight.ndim
    if {first % rank, second % rank} != {rank - 2, rank - 1} or source.operand is None:
        return None
    if source.layout not in ("plain", "transposed"):
        return None
    shape = torch.Size((*source.shape[:-2], source.shape[-1], source.shape[-2]))
    transposes = not source.transposed
    return weight.view_of(shape, source.operand, lambda: source.floats().mT, transposed=transposes)


def _t(weight: Any) -> Any:
    return _transpose(weight) if weight.ndim == 2 else None


def _permute(weight: Any, dims: Sequence[int]) -> Any:
    rank = weight.ndim
    order = [*range(rank - 2), rank - 1, rank - 2]
    return _transpose(weight, -2, -1) if [d % rank for d in dims] == order else None


def _slice(
    weight: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    source, rank = weight.source, weight.ndim
    dim, n = dim % rank, weight.shape[dim]
    first, last, _ = slice(start, end).indices(n)
    if (first, last, step) == (0, n, 1):
        return _same(weight)
    along = rank - 1 if source.transposed and rank == 2 else 0
    if source.operand is None or dim != along or step != 1 or source.layout == "channels_last":
        return None
    if source.layout.startswith("transposed_"):
        return None
    rows = stacks.rows_of(source.operand, first, max(first, last))
    if rows is None:
        return None
    shape = list(source.shape)
    shape[dim] = max(last - first, 0)
    some = range(first, max(first, last)) if rank == 3 else None
    return _piece(weight, rows, torch.Size(shape), some)


def _select(weight: Any, dim: int, index: int) -> Any:
    source = weight.source
    if source.operand is None or dim % weight.ndim or weight.ndim < 3:
        return None
    if source.layout not in ("plain", "transposed"):
        return None
    index %= weight.shape[0]
    choice = stacks.matrix(source.operand, index)
    if choice is None:
        return None
    return _piece(weight, choice, source.shape[1:], range(index, index + 1))


def _piece(weight: Any, operand: Any, shape: torch.Size, numbers: range | None = None) -> Tensor:
    """A piece with codes of its own, which alone is dequantized where its floats are wanted.

    numbers: which matrices of a stack it is
    """
    assert isinstance(weight, ReadTensor)
    source = weight.source
    rows = source.rows if numbers is None or source.rows is None else source.rows.of(numbers)

    def floats() -> Tensor:
        values: Tensor = dequantize(operand, source.dtype)
        return values.mT if source.transposed else values

    return weight.view_of(shape, operand, floats, rows=rows)


def _split(weight: Any, size: Any, dim: int = 0) -> Any:
    n = weight.shape[dim]
    sizes = (
        size
        if isinstance(size, list | tuple)
        else [size] * (n // size) + [n % size] * (n % size > 0)
    )
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    parts = [_slice(weight, dim, a, b) for a, b in pairwise(starts)]
    return None if any(part is None for part in parts) else parts


def _unbind(weight: Any, dim: int = 0) -> Any:
    parts = [_select(weight, dim, i) for i in range(weight.shape[dim])]
    return None if any(part is None for part in parts) else parts


VIEWS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.lift_fresh.default: _same,
    aten.view.default: _view,
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
}
