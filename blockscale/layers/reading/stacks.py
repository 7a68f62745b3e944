# SPDX-License-Identifier: BSD-3-Clause
"""Products with a stack of matrices that was read: a kernel call for each matrix that rows go to.

transformers has three ways through the experts of a layer. `eager` reads one expert after another,
which are pieces of the stack. `grouped_mm` sorts the tokens by expert and multiplies by the whole
stack; `batched_mm`, and Llama 4, give each token or each expert a product of its own. The handlers
are those of blockscale.layers.reading.products, by the names of operators.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.layers.reading.source import ReadTensor
from blockscale.ops.pieces import stack


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
    """Rows of x [rows, k], sorted by matrix; `offs` says where those of each end."""
    whole = _stack(weight, x)
    plain = bias is None and out_dtype in (None, x.dtype) and x.ndim == 2
    if whole is None or offs is None or not plain or _captured(x):
        return None
    return stack.grouped(x, whole, offs.tolist())


def _captured(x: Tensor) -> bool:
    """Whether a CUDA graph records this call: then what `offs` says must stay on the device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def chosen_of(weight: Any, chosen: Tensor) -> Any:
    """weight[chosen], a matrix for each number: it keeps to codes until its floats are asked for.

    Then each of the matrices is dequantized once, and the others are not.
    """
    if not isinstance(weight, ReadTensor) or weight.ndim != 3 or chosen.device != weight.device:
        return None
    source = weight.source
    whole = source.operand
    if whole is None or source.layout not in ("plain", "transposed") or _captured(chosen):
        return None
    if whole.shape[0] and stack.matrix(whole, 0) is None:
        return None

    def floats() -> Tensor:
        values = stack.values(whole, chosen, source.dtype)
        assert values is not None  # of the same format as matrix 0
        return values.mT if source.transposed else values

    shape = torch.Size((*chosen.shape, *weight.shape[1:]))
    made = weight.view_of(shape, None, floats, transposed=False)
    made.chosen = (whole, chosen, source.transposed)
    return made


def _bmm(a: Any, b: Any) -> Any:
    """A product for each matrix: x @ weight, or weight @ x of chosen matrices."""
    if isinstance(a, ReadTensor):
        chosen = _chosen(a, b, transposed=False)
        y = None if chosen is None else stack.each(b.mT, *chosen)
        return None if y is None else y.mT
    chosen = _chosen(b, a, transposed=True)
    if chosen is not None:
        return stack.each(a, *chosen)
    whole = _stack(b, a)
    if whole is None:
        return None
    rows = a.shape[1]
    flat = stack.grouped(a.reshape(-1, a.shape[2]), whole, [rows * (i + 1) for i in range(len(a))])
    return None if flat is None else flat.reshape(*a.shape[:2], -1)


def _chosen(weight: Any, x: Any, *, transposed: bool) -> tuple[Operand, Tensor] | None:
    """What `chosen_of` knew of a tensor that it gave, if x can be multiplied by its matrices."""
    known = getattr(weight, "chosen", None) if isinstance(weight, ReadTensor) else None
    if known is None or isinstance(x, ReadTensor) or x.dtype != weight.dtype:
        return None
    whole, chosen, turned = known
    return (whole, chosen) if turned == transposed and chosen.ndim == 1 else None


STACKS: dict[str, Callable[..., Any]] = {
    "aten::_grouped_mm": _grouped_mm,
    "transformers::grouped_mm_fallback": _grouped_mm,
    "aten::bmm": _bmm,
}
