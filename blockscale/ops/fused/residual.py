# SPDX-License-Identifier: BSD-3-Clause
"""The norm of a residual sum, and floats beside it: what a transformer's next block begins with.

A block's end is read twice: in codes, by the next linear layers, and as floats, by the next
residual sum. After the norm where it stands behind the sum (`keep="norm"`, as in BERT), before the
norm where it stands in front of a branch (`keep="sum"`, as in GPT-2 and Llama). A fused op has one
result, so these are ops of their own kind: [floats, *result], where `result` is what a fused op
gives.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.registry import find
from blockscale.ops.fused import values
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import Op, register
from blockscale.ops.operand import signature

KEPT = ("norm", "sum")
_INSTEAD = "it is for inference; train the prepared graph or model, and fuse what was converted"


def residual_layer_norm(
    a: Value,
    b: Value,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """a, b [..., *normalized_shape] that broadcast -> [floats, *the layer norm of a + b].

    keep: the floats are the "norm" (what `y` quantizes), or the "sum" a + b; both of `dtype`

    Raises ValueError for another `keep`, and for operands that do not fit.
    """

    def norm(total: Tensor) -> Tensor:
        return F.layer_norm(total, normalized_shape, weight, bias, eps)

    return _results(a, b, norm, keep, dtype, y)


def residual_rms_norm(
    a: Value,
    b: Value,
    normalized_shape: list[int],
    weight: Tensor | None,
    eps: float | None,
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """a, b [..., *normalized_shape] that broadcast -> [floats, *the RMS norm of a + b].

    keep: as in residual_layer_norm
    """

    def norm(total: Tensor) -> Tensor:
        return F.rms_norm(total, normalized_shape, weight, eps)

    return _results(a, b, norm, keep, dtype, y)


def _results(
    a: Value,
    b: Value,
    norm: Callable[[Tensor], Tensor],
    keep: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """What the ops do that this one stands for, one after the other."""
    with values.precise(dtype, a.data):
        total = values.floats(a, dtype, False) + values.floats(b, dtype, False)
        normed = norm(total)
    result = values.quantized(normed.to(dtype), y)
    kept = (normed if keep == "norm" else total).to(dtype).contiguous()
    shared = any(kept.data_ptr() == each.data_ptr() for each in result)
    return [kept.clone() if shared and kept.numel() else kept, *result]


def _empty(a: Value, b: Value, *rest: Any) -> list[Tensor]:
    """What `_results` gives, empty."""
    _check(a, b, *rest)
    dtype, y = rest[-2:]
    sizes = [values.empty(each, dtype, False).shape for each in (a, b)]
    shape = torch.broadcast_shapes(*sizes)  # type: ignore[no-untyped-call]
    kept = a.data.new_empty(shape, dtype=dtype)
    return [kept, *values.empty_quantized(kept, y)]


def _check(a: Value, b: Value, *rest: Any) -> None:
    """Raise ValueError for what does not fit, before anything is computed."""
    keep, _, y = rest[-3:]
    values.check_value("a residual norm", "a", a)
    values.check_value("a residual norm", "b", b)
    values.check_quantizer("a residual norm", y)
    if keep not in KEPT:
        raise ValueError(f"keep must be {' or '.join(map(repr, KEPT))}, got {keep!r}")


def _op(reference: Callable[..., list[Tensor]]) -> Op:
    name, takes = f"fused_{reference.__name__}", signature(reference, None)
    spellings = takes.spellings

    def run(*args: Any) -> Any:
        _check(*args)
        device = args[0].data.device.type
        kernel = find(name, spellings(*args), device, args, composed=True)
        return reference(*args) if kernel is None else kernel.run(*args)

    made = register(name, reference, takes, list[Tensor], run, shape=_empty, ulps=64)
    not_differentiable(made, _INSTEAD)
    return made


RESIDUAL_LAYER_NORM = _op(residual_layer_norm)
RESIDUAL_RMS_NORM = _op(residual_rms_norm)
RESIDUAL = (RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM)
