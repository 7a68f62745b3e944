# SPDX-License-Identifier: BSD-3-Clause
"""The ops with a quantized weight: products, fused or not, convolutions and rows of tables. Formats
that the kernels know only restated.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.pack import from_stored
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.matmul import choice as ways
from blockscale.kernels.cuda.matmul import composed, hopper
from blockscale.kernels.cuda.matmul.choice import WAYS, WayChoice
from blockscale.kernels.cuda.matmul.codes import codes, float8_sums, pair
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, add_up
from blockscale.kernels.cuda.matmul.operands import (
    Codes,
    ProductCall,
    Values,
    Weight,
    as_words,
    exact_products,
    read,
)
from blockscale.kernels.cuda.matmul.order import PARTS
from blockscale.kernels.cuda.matmul.reading import (
    Reading,
    reading,
    reading_as_one,
    through_memory,
)
from blockscale.kernels.cuda.primitives import guard
from blockscale.kernels.cuda.primitives.plan import floats, form
from blockscale.kernels.cuda.quantize import (
    block_errors,
    choose_quantize,
    dequantize,
    fake_quantize,
    quantize,
)
from blockscale.kernels.cuda.replay import replay
from blockscale.kernels.cuda.spec import known, spec
from blockscale.kernels.numbers import ACTIVATIONS
from blockscale.kernels.registry import ByFormats, Formats, batch_invariant, kernel
from blockscale.kernels.restated_ops import register

# x @ weight.T: codes times codes where tensor cores take them, else weights decoded on the way.

_MANY, _MORE = 64, 1024  # rows from which values are taken as two bfloat16: of what nothing else
# takes, and of tables in several parts


def _how_exact(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> str | None:
    """What `pair` and `how_read` decide by, beside a call's arguments."""
    del x, bias
    hides = composed.least_rows(weight.fmt, weight.size) is not None  # tables are among these
    exact, sums = (hides and exact_products()) or "", (input.fmt and float8_sums()) or ""
    text = (exact, sums, "rows" * batch_invariant())
    return " ".join(text) if any(text) else None


@kernel("linear", backend="cuda", supports=known)
@replay(also=_how_exact)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    x = floats(x)
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    w = _check(weight, k)
    bias = None if bias is None else bias.expand(n).contiguous()
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = x.new_zeros(shape)
        return y if bias is None else y.copy_(bias)
    with guard(x):
        rest = read(x, input)
        if batch_invariant():
            return _in_any_batch(rest, w, bias, x.dtype).reshape(shape)
        return _product(rest, w, bias, x.dtype).reshape(shape)


def _product(rest: Values | Codes, w: Operand, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What was read of x with the weight, as is best for so many rows: [rows, n] of dtype."""
    if isinstance(rest, Values) and composed.takes_rounded(rest.x, w, dtype):
        return composed.rounded(rest.x, w, Ends(rest.row, bias), dtype)
    if w.more or w.format.zero:  # parts that no way to multiply knows
        rest = rest.values() if isinstance(rest, Codes) else rest
        return _with_offsets(rest, w, bias, dtype)
    return multiply(rest, Weight(*w[:4]), w.fmt, bias, dtype)


def _in_any_batch(
    rest: Values | Codes, w: Operand, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The same with sums whose order does not depend on the number of rows: by tiles of one size
    or, where only the library multiplies, a row at a time."""
    choice = _choice_for_any_rows(rest, w, dtype)
    if choice is not None:
        return multiply(rest, Weight(*w[:4]), w.fmt, bias, dtype, choice)
    rows = (rest.x if isinstance(rest, Values) else rest.packed).shape[0]
    return torch.cat([_product(rest.alone(i), w, bias, dtype) for i in range(rows)])


def _choice_for_any_rows(rest: Values | Codes, w: Operand, dtype: torch.dtype) -> WayChoice | None:
    """How a product is computed whatever the number of rows; None where no kernel of ours does."""
    if w.more or w.format.zero:
        return None
    if isinstance(rest, Codes):
        if pair(w.fmt, rest.element, rest.size, dtype):
            return ways.for_any_rows(None)
        rest = rest.values()
    r = how_read(rest.x, w.fmt, dtype)
    if r is None or (not r.width and isinstance(w.format.scale, TwoLevel)):
        return None
    return ways.for_any_rows(through_memory(r) if r.planes and as_words(w.codes) is None else r)


def _check(weight: Operand, k: int) -> Operand:
    """The weight in order. Raises ValueError if its parts do not fit the format."""
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{weight.fmt}: a linear weight's codes must be [n, k], found "
            f"{tuple(weight.codes.shape)}"
        )
    stored = form(weight.fmt)
    shape = (weight.codes.shape[0], k)
    codes = stored.checked_codes(weight.codes, shape)
    scale, zero_point, outer = weight.scale, weight.zero_point, weight.outer
    stored.given_parts(codes, shape, scale, zero_point, outer, weight.more)
    return weight._replace(
        codes=codes,
        scale=scale.contiguous(),
        zero_point=None if zero_point is None else zero_point.contiguous(),
        outer=None if outer is None else outer.contiguous(),
    )


def _with_offsets(x: Values, w: Operand, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x with a weight whose blocks have offsets, or zero points that are no integers: [rows, n]."""
    other = composed.with_zero_points(w.fmt, w.size)
    if not other:
        return _in_float32(x, w, bias, dtype)

    def main(x: Values, weight: Weight, fmt: str, dtype: torch.dtype) -> Tensor:
        return weighted(x, weight, fmt, None, dtype)

    return composed.product(x, w, other, bias, dtype, main)


def multiply(
    x: Values | Codes,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: WayChoice | None = None,
) -> Tensor:
    """What was read of x with the weight, as `choice` says, else as is best: [rows, n] of dtype."""
    if isinstance(x, Codes):
        what = pair(fmt, x.element, x.size, dtype)
        if what and (choice is None or choice.way in ("codes", "library")):
            if choice is None:
                call = ProductCall(what, fmt, x.row.numel(), w.codes.shape[0], x.size)
                choice = ways.choose(call, None, device_name(w.codes))
            return codes(x, w, fmt, Ends(x.row, bias), choice.settings, dtype)  # type: ignore[arg-type]
        x = x.values()
    return weighted(x, w, fmt, bias, dtype, choice)


def weighted(
    x: Values,
    w: Weight,
    fmt: str,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: WayChoice | None = None,
) -> Tensor:
    """Values of x with a weight that is decoded, as `choice` says, else as is best: [rows, n]."""
    (rows, k), n = x.x.shape, w.codes.shape[0]
    r = how_read(x.x, fmt, dtype)
    if r is None or (not r.width and isinstance(parse(fmt).scale, TwoLevel)):
        return _in_float32(x, Operand(*w, fmt, k), bias, dtype)
    if r.further and rows >= _MORE and choice is None and composed.takes_halves(x.x, dtype):
        return composed.halves(x.x, Operand(*w, fmt, k), Ends(x.row, bias), dtype)
    if r.planes and as_words(w.codes) is None:
        r = through_memory(r)
    if choice is None:
        on_hopper = hopper.can_run(w.codes)
        call = ProductCall("weight", fmt, rows * PARTS[x.x.dtype], n, k, on_hopper)
        choice = ways.choose(call, r, device_name(w.codes))
    if r.multiplier != 1.0:
        x = replace(x, row=times_row(x, 1 / r.multiplier))
    if r.further:
        return _sum_of_parts(x, w, fmt, r, bias, dtype, choice)
    return WAYS[choice.way].run(x.x, w, fmt, r, Ends(x.row, bias), choice.settings, dtype)


@cache
def _several(fmt: str, k: int) -> bool:
    """Whether a table's values are read in several parts."""
    r = reading(fmt, k)
    return r is not None and bool(r.further)


def how_read(x: Tensor, fmt: str, dtype: torch.dtype) -> Reading | None:
    """`reading` of a weight's rows; where a bfloat16 result of bfloat16 x hides what that loses, a
    table's values as one bfloat16 each."""
    k = x.shape[1]
    if x.dtype is dtype is torch.bfloat16 and _several(fmt, k) and exact_products() != "exact":
        return reading_as_one(fmt, k) or reading(fmt, k)
    return reading(fmt, k)


def _sum_of_parts(
    x: Values,
    w: Weight,
    fmt: str,
    r: Reading,
    bias: Tensor | None,
    dtype: torch.dtype,
    choice: WayChoice,
) -> Tensor:
    """As `weighted`, of tables that are read in several parts."""
    readings, run = (r, *r.further), WAYS[choice.way].run
    rows, n = x.x.shape[0], w.codes.shape[0]
    sums = x.x.new_empty((len(readings), rows, n), dtype=torch.float32)
    for i, one in enumerate(readings):  # an index, not `zip`, of which there are no recordings
        sums[i].copy_(run(x.x, w, fmt, one, NO_ENDS, choice.settings, torch.float32))
    return add_up(sums, len(readings), Ends(x.row, bias), sums.new_empty((rows, n), dtype=dtype))


def times_row(x: Values, by: float) -> Tensor:
    """The factors of the rows of x times a number."""
    if x.row is None:
        return torch.full((x.x.shape[0],), by, dtype=torch.float32, device=x.x.device)
    return x.row * by


def _in_float32(x: Values, w: Operand, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Elements of more than 8 bits, scales of a few elements: everything in float32.

    Tables, and blocks with offsets or with zero points that are no integers, for many rows: as two
    bfloat16 each.
    """
    own = w.more or w.format.zero or spec(w.fmt).element.family == "codebook"
    if own and x.x.shape[0] >= _MANY and composed.takes_halves(x.x, dtype):
        return composed.halves(x.x, w, Ends(x.row, bias), dtype)
    weight = dequantize(w, torch.float32)
    values = x.x.to(torch.float32)
    if x.row is not None:
        values = values * x.row[:, None]
    with float32_inside(values):
        y = F.linear(values, weight, None if bias is None else bias.to(torch.float32))
    return y.to(dtype)


def device_name(x: Tensor) -> str:
    """The name of the GPU that has x, which tables of launch choices have."""
    return "interpreter" if interpreting() else _name(x.device.index or 0)


@cache
def _name(index: int) -> str:
    return torch.cuda.get_device_name(index)


# x @ weight.T with what follows it, through the kernels of `linear`: weights are never decoded to
# memory, and x's codes meet them as integers where those kernels do that.


@cache
def _knows(spellings: tuple[str, ...]) -> bool:
    return known(tuple(parse(spelling) for spelling in spellings if spelling), ())


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _, activation, dtype, y = arguments
    if not weight.fmt or weight.data.ndim != 2 or activation not in ACTIVATIONS:
        return False
    if dtype not in FLOATS or not (x.fmt or x.data.dtype in FLOATS) or x.data.ndim == 0:
        return False
    return _knows((x.fmt, weight.fmt, y.fmt))


@kernel("fused_linear", backend="cuda", supports=_supports)
def fused_linear(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.linear."""
    values, by = _floats(x, dtype)
    if bias is not None:
        bias = bias.to(values.dtype) if values.dtype == dtype else bias.to(torch.float32)
    result = linear(values, weight.operand, bias, by).to(dtype)
    activate = ACTIVATIONS[activation]
    result = activate(result)
    if not y.fmt:
        return [result]
    return choose_quantize(result, y.fmt, y.seed) if y.scale is None else [quantize(result, y)]


def _floats(x: Value, dtype: torch.dtype) -> tuple[Tensor, Quantizer]:
    """x as `linear` takes it: floats, and how they become the same codes again."""
    if not x.fmt:
        return (x.data if x.data.dtype == dtype else x.data.to(torch.float32)), UNQUANTIZED
    values = dequantize(x.operand, torch.float32)
    if not _comes_back(x.fmt):
        return values, UNQUANTIZED
    scale, zero = x.scale, x.zero_point
    assert scale is not None
    if scale.ndim != values.ndim and scale.numel() == 1:  # one for all may have any rank
        whole = (1,) * values.ndim
        scale, zero = scale.reshape(whole), None if zero is None else zero.reshape(whole)
    return values, Quantizer(scale, zero, x.outer, x.fmt, None, x.more)


@cache
def _comes_back(spelling: str) -> bool:
    """Whether values under one scale for all of x get the codes that they were decoded from:
    fl(fl(code · step) / step) is within an ulp of the code, which the nearest integer does not see.
    """
    fmt = parse(spelling)
    plain = fmt.element.integer and fmt.offset is None and fmt.zero is None
    return plain and fmt.rounding == "nearest_even" and fmt.element.bits <= 8 and fmt.block.static


# Convolutions: the library's, of a weight and an input that kernels have brought to float32.

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
Sizes = list[int]


@kernel("conv", backend="cuda", supports=known)
def conv(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.conv.conv."""
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    floats(x)  # refuses what the reference refuses
    values = x.to(torch.float32)
    if input.fmt:
        quantized = fake_quantize(values.movedim(1, -1), input)
        values = quantized.movedim(-1, 1)
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        run = _CONV[len(shape) - 2]
        y = run(values, dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()


# Rows of a quantized table: their codes and scales are gathered, then dequantized.


def by_rows(formats: Formats) -> bool:
    """Whether each row has scales of its own, or all rows have the same, of known elements."""
    (fmt,) = formats
    if not known(formats, ()):
        return False
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return False
    return fmt.block.sizes_for(2)[0] in (1, WHOLE)


@kernel("embedding", backend="cuda", supports=ByFormats(by_rows))
@replay()
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding."""
    f, shape = form(weight.fmt), (weight.codes.shape[0], weight.size)
    codes = f.checked_codes(weight.codes, shape)
    scale, zero_point = weight.scale, weight.zero_point
    more = weight.more
    f.given_parts(codes, shape, scale, zero_point, weight.outer, more)
    rows = indices.reshape(-1)
    if f.format.block.sizes_for(2)[0] == 1:
        scale = scale.index_select(0, rows)
        zero_point = None if zero_point is None else zero_point.index_select(0, rows)
        more = None if more is None else [part.index_select(0, rows) for part in more]
    codes = codes.index_select(0, rows)
    choice = weight._replace(codes=codes, scale=scale, zero_point=zero_point, more=more)
    return dequantize(choice, dtype).reshape(*indices.shape, weight.size)


# Formats that the CUDA kernels know only restated.


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes and their order."""
    data = part.contiguous().view(torch.uint8).flatten().to(torch.int64)
    place = torch.arange(1, data.numel() + 1, device=data.device)
    return int((data * (2 * place * place + 1)).sum())


OPS = register("cuda", fingerprint, block_errors)
