"""x @ weight.T: integers times integers where the formats allow, else decoded weights."""

from functools import cache

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.choose_qparams import every
from blockscale.kernels.cpu.fake_quantize import fake_quantize
from blockscale.kernels.cpu.native import DTYPES, floats, in_order, native, threads
from blockscale.kernels.cpu.prepack import prepared
from blockscale.kernels.registry import kernel

_WHOLE_ROW = 2**62


@kernel("linear", backend="cpu", supports=every)
def linear(  # noqa: PLR0913 - the op's arguments
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    bias: Tensor | None,
    fmt: str,
    input_scale: Tensor | None,
    input_zero_point: Tensor | None,
    input_outer: Tensor | None,
    input_fmt: str,
    input_seed: Tensor | None = None,
) -> Tensor:
    """As ops.linear.linear."""
    x, dtype = floats(x)
    k, n = x.shape[-1], weight.shape[0]
    ready = prepared((weight, scale, zero_point, outer), fmt, k)
    offset = None if bias is None else in_order(bias.to(torch.float32).expand(n))
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype)
    given = (input_scale, input_zero_point, input_outer)
    if y.numel() == 0:
        return y
    to = (0 if offset is None else offset.data_ptr(), y.data_ptr(), DTYPES[y.dtype], threads())
    rows = y.numel() // n
    if input_fmt:
        block = _row_block(input_fmt, x.ndim)
        if block is not None and _as_integers(ready, x, dtype, rows, block, given, input_fmt, to):
            return y
        x = fake_quantize(x.to(torch.float32), *given, input_fmt, input_seed)
        dtype = DTYPES[torch.float32]
    ready.floats(x.data_ptr(), dtype, rows, *to)
    return y


@cache
def _row_block(fmt: str, rank: int) -> int | None:
    """How many elements of a row share a scale; 0 if all of x does, None for any other block."""
    *rows, size = parse(fmt).block.sizes_for(rank)
    if not any((*rows, size)):
        return 0
    return (size or _WHOLE_ROW) if all(each == 1 for each in rows) else None


def _as_integers(ready, x, dtype, rows, block, given, fmt, to) -> bool:
    """Whether integer arithmetic could give the result, and did."""
    form, address = native(fmt), 0
    if given[0] is not None:
        if block:
            return False
        scale = form.given_parts(x.shape, *given).scale
        address = scale.data_ptr()
    return ready.integers(form.handle, x.data_ptr(), dtype, rows, block, address, *to)
