"""x @ weight.T: codes times codes where tensor cores take them, else weights decoded on the way."""

from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.precision import float32_inside
from blockscale.core.scale import TwoLevel
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.matmul import linear_choice, linear_fused
from blockscale.kernels.cuda.matmul.linear_choice import Call, Choice
from blockscale.kernels.cuda.matmul.linear_coded import blocks, coded, float8_sums, pair
from blockscale.kernels.cuda.matmul.linear_dense import dense
from blockscale.kernels.cuda.matmul.linear_few import few
from blockscale.kernels.cuda.matmul.linear_input import Codes, Values, read
from blockscale.kernels.cuda.matmul.linear_launch import PARTS, Ends, Weight, as_words, tiled
from blockscale.kernels.cuda.matmul.linear_reading import reading
from blockscale.kernels.cuda.primitives.form import floats, form
from blockscale.kernels.cuda.primitives.launch import guard
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import kernel


def _how_exact(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> str | None:
    """What `pair` decides by, beside a call's arguments."""
    del x, weight, bias
    return float8_sums() if input.fmt else None


@kernel("linear", backend="cuda", supports=known)
@replayed(also=_how_exact)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    x, fmt = floats(x), weight.fmt
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    w = _checked(Weight(*weight[:4]), fmt, k)
    bias = None if bias is None else bias.expand(n).contiguous()
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = x.new_zeros(shape)
        return y if bias is None else y.copy_(bias)
    with guard(x):
        found = read(x, input)
        return multiplied(found, w, fmt, bias, x.dtype).reshape(shape)


def _checked(weight: Weight, fmt: str, k: int) -> Weight:
    """The weight in order. Raises ValueError if its parts do not fit the format."""
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{fmt}: a linear weight's codes are [n, k], not {tuple(weight.codes.shape)}"
        )
    stored = form(fmt)
    shape = (weight.codes.shape[0], k)
    codes = stored.checked_codes(weight.codes, shape)
    parts = weight[1:]
    stored.given_parts(codes, shape, *parts)
    return Weight(codes, *(None if part is None else part.contiguous() for part in parts))  # type: ignore[arg-type]


def multiplied(
    found: Values | Codes,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: Choice | None = None,
) -> Tensor:
    """What was read of x with the weight, as `choice` says, else as is best."""
    if isinstance(found, Codes):
        what = pair(fmt, found.element, found.size, dtype)
        if what and (choice is None or choice.path in ("codes", "library")):
            if choice is None:
                call = Call(what, fmt, found.row.numel(), w.codes.shape[0], found.size)
                choice = linear_choice.choose(call, None, device_name(w.codes))
            return coded(found, w, fmt, Ends(found.row, bias), choice, dtype)
        found = found.values()
    return weighted(found, w, fmt, bias, dtype, choice)


def weighted(
    found: Values,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: Choice | None = None,
) -> Tensor:
    """Values of x with a weight that is decoded, as `choice` says, else as is best."""
    (rows, k), n = found.x.shape, w.codes.shape[0]
    r = reading(fmt, k)
    if r is None or (not r.width and isinstance(parse(fmt).scale, TwoLevel)):
        return _in_float32(found, w, fmt, bias, dtype)
    if r.planes and as_words(w.codes) is None:
        r = replace(r, planes=0)
    if choice is None:
        can = linear_fused.can(w.codes)
        call = Call("weight", fmt, rows * PARTS[found.x.dtype], n, k, can)
        choice = linear_choice.choose(call, r, device_name(w.codes))
    ends = Ends(found.row, bias)
    if choice.path == "dense":
        outputs = choice.tile.outputs if choice.tile is not None else 0
        return dense(found.x, w, fmt, r, ends, dtype, outputs)
    assert choice.tile is not None
    if choice.path == "few":
        return few(found.x, w, fmt, r, ends, choice.tile, dtype)
    if choice.path == "fused":
        return linear_fused.fused(found.x, w, fmt, r, ends, choice.tile, dtype)
    if choice.path == "blocks":
        return blocks(found.x, w, fmt, r, ends, choice.tile, dtype)
    return tiled(found.x, w, fmt, r, ends, choice.tile, dtype)


def _in_float32(
    found: Values, w: Weight, fmt: str, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Elements of more than 8 bits, scales of a few elements: everything in float32."""
    values = dequantize(Operand(*w, fmt, found.x.shape[-1]), torch.float32)
    x = found.x.to(torch.float32)
    if found.row is not None:
        x = x * found.row[:, None]
    with float32_inside(x):
        y = F.linear(x, values, None if bias is None else bias.to(torch.float32))
    return y.to(dtype)


def device_name(x: Tensor) -> str:
    """The GPU's name, which tables of choices have."""
    return "interpreter" if interpreting() else _name(x.device.index or 0)


@cache
def _name(index: int) -> str:
    return torch.cuda.get_device_name(index)
