"""Many rows of x: the weight's codes as bfloat16 in passing, multiplied by the library.

Codes of at most 8 bits, times scales where these are powers of two or few bits, are exact in
bfloat16; what is left of the scale meets the sums. Nothing of this is kept.
"""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.matmul import linear_tile
from blockscale.kernels.cuda.matmul.linear_launch import PARTS, Ends, Weight, row_steps
from blockscale.kernels.cuda.matmul.linear_reading import Reading
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2

_UNFLUSHED = 16384  # products summed up there; of so many positive ones 63 of 64 units were lost
_AT_ONCE = 1 << 30  # bytes of bfloat16 weights at a time, where nothing else is said


def exact(
    weight: Weight, fmt: str, r: Reading, k: int, first: int = 0, last: int | None = None
) -> Tensor:
    """Rows first ... last of the weight as bfloat16, without what `row_steps` (or blocks) add."""
    form = parse(fmt)
    scale, outer = weight.scale, weight.outer
    if isinstance(form.scale, FloatScale):
        scale = torch.ones_like(scale)
    elif not r.width and isinstance(form.scale, PowerOfTwo):
        one = 127 + form.fraction_bits if form.scale.byte else 1
        scale = torch.full_like(scale, one)
    elif outer is not None:
        outer = torch.ones_like(outer)
    zero, codes = weight.zero_point, weight.codes
    if (first, last) != (0, None) and r.height == 1:
        scale = scale[first:last]
        zero = zero if zero is None else zero[first:last]
    codes = codes[first:last]
    return dequantize(Operand(codes, scale, zero, outer, fmt, k), torch.bfloat16)


def split(x: Tensor) -> Tensor:
    """x [rows, k] -> its bfloat16 parts [parts * rows, k], the largest first."""
    if x.dtype is torch.bfloat16:
        return x
    rows, k = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty((PARTS[x.dtype] * rows, k), dtype=torch.bfloat16)
    block = min(power_of_2(k), 2048)
    direct(linear_tile.arrange)[(rows, cdiv(k, block))](
        x, out, rows, k, x.stride(0), PLANES=1, PARTS=PARTS[x.dtype], BLOCK=block
    )
    return out


def dense(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    dtype: torch.dtype,
    outputs: int = 0,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n], by the library's product of bfloat16."""
    (rows, k), n = x.shape, weight.codes.shape[0]
    parts, ready = PARTS[x.dtype], split(x)
    row, row_stride = row_steps(weight, fmt, r)
    plain = row is None and ends.x_row is None and parts == 1 and dtype is torch.bfloat16
    plain = plain and (ends.bias is None or ends.bias.dtype is dtype) and not interpreting()
    y = x.new_empty((rows, n), dtype=dtype)
    step = outputs or max(_AT_ONCE // (2 * k), 1)
    step = step if r.height == 1 else n
    for first in range(0, n, step):
        last = min(first + step, n)
        w = exact(weight, fmt, r, k, *((first, last) if step < n else ()))
        bias = None if ends.bias is None else ends.bias[first:last]
        if plain:
            to = y[:, first:last]
            if bias is None:
                torch.mm(ready, w.t(), out=to) if step >= n else to.copy_(ready @ w.t())
            else:
                to.copy_(torch.addmm(bias, ready, w.t()))
            continue
        sums = _sums(ready, w)
        some = row if row is None or not row_stride else row[first:last]
        block = min(power_of_2(last - first), 1024)
        direct(linear_tile.finish)[(rows, cdiv(last - first, block))](
            sums, some, ends.x_row, bias, y[:, first:last], rows, last - first, row_stride, n,
            count=parts, BLOCK=block,
        )  # fmt: skip
    return y


def _sums(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T in float32, not rounded to bfloat16. Tensor cores truncate: not too much at once."""
    if interpreting():
        return x.to(torch.float32) @ w.to(torch.float32).t()
    found = torch.mm(x[:, :_UNFLUSHED], w[:, :_UNFLUSHED].t(), out_dtype=torch.float32)
    for first in range(_UNFLUSHED, x.shape[1], _UNFLUSHED):
        last = first + _UNFLUSHED
        found += torch.mm(x[:, first:last], w[:, first:last].t(), out_dtype=torch.float32)
    return found
