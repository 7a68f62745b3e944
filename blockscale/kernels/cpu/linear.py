# SPDX-License-Identifier: BSD-3-Clause
"""The ops with a quantized weight: products, fused or not, and rows of tables. Formats that the
kernels know only restated.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import (
    DTYPES,
    NO_PARTS,
    NativeFormat,
    addresses,
    fingerprint,
    floats,
    known,
    linear_weight,
    native,
    threads,
)
from blockscale.kernels.cpu.quantize import (
    block_errors,
    choose_quantize,
    dequantize,
    fake_quantize,
    quantize,
)
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import batch_invariant, kernel
from blockscale.kernels.restated_ops import register

# x @ weight.T: integers times integers where the formats allow, else decoded weights.

WHOLE_ROW = 2**62


@kernel("linear", backend="cpu", supports=known)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear.

    Sums of integers are exact, and what follows them has one order for any number of rows. Sums of
    floats have several, by the number of rows, unless each row is to have the same in any batch.
    """
    x, dtype = floats(x)
    n, (*rows, k) = weight.codes.shape[0], x.shape
    y = new((*rows, n), x.dtype)
    offset = None if bias is None else float_bias(bias, n)
    count = y.numel()
    if not count or not k:
        return y.zero_() if offset is None else y.copy_(offset)
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    ready = linear_weight(weight)
    if input.fmt:
        block = row_block(input.fmt, x.ndim)
        if block is not None and as_integers(ready, x, block, input, offset, y):
            return y
        x = fake_quantize(x.to(torch.float32), input)
        dtype = DTYPES[torch.float32]
    ready.floats(x.data_ptr(), dtype, count // n, *_to(offset, y), batch_invariant())
    return y


def float_bias(bias: Tensor, n: int) -> Tensor:
    """The bias [n] as the kernels add it."""
    if bias.dtype is torch.float32 and bias.shape == (n,):
        return in_order(bias)
    return in_order(bias.to(torch.float32).expand(n))


@cache
def row_block(fmt: str, rank: int) -> int | None:
    """How many elements of a row share a scale; 0 if all of x does.

    None for any other block, and for formats that integer arithmetic does not take.
    """
    form = parse(fmt)
    if form.offset or form.zero or isinstance(form.scale, TwoLevel):
        return None
    *rows, size = form.block.sizes_for(rank)
    if not any((*rows, size)):
        return 0
    return (size or WHOLE_ROW) if all(each == 1 for each in rows) else None


def as_integers(
    ready: Any, x: Tensor, block: int, by: Quantizer, bias: Tensor | None, y: Tensor
) -> bool:
    """Whether integer arithmetic could give y = x @ weight.T + bias, and did."""
    form, scale, zero_point = native(by.fmt), 0, 0
    if by.scale is not None:
        if block:
            return False
        parts = form.checked_parts(x.shape, by.scale, by.zero_point, by.outer)
        scale, _, zero_point, _ = addresses(parts)
    rows = y.numel() // y.shape[-1]
    ran: bool = ready.integers(
        form.handle, x.data_ptr(), DTYPES[x.dtype], rows, block, scale, zero_point, *_to(bias, y)
    )
    return ran


def _to(bias: Tensor | None, y: Tensor) -> tuple[int, int, int, int]:
    """Where results go, and on how many threads."""
    return 0 if bias is None else bias.data_ptr(), y.data_ptr(), DTYPES[y.dtype], threads()


# x @ weight.T of codes times codes, and what follows it, in one pass: bias, activation, codes.
#
# Integers times integers as `linear`. Where the formats do not allow that, x is dequantized;
# results in formats that the kernel does not end in are quantized by the primitives.

# As `Activation` of src/linear.h counts them.
ACTIVATIONS = {
    name: i
    for i, name in enumerate(
        ("", "relu", "relu6", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh")
    )
}


class Result(NamedTuple):
    """What follows the sums.

    bias: float32 [n]; activation: a key of ACTIVATIONS; dtype: of the result, also where codes are
    made of it; y: how they are made
    channels_first: floats of a convolution are [batch, n, *size], not [batch, *size, n]
    """

    bias: Tensor | None
    activation: str
    dtype: torch.dtype
    y: Quantizer
    channels_first: bool = False


class SumsEnd(NamedTuple):
    """Memory for a product [*shape] or its codes, and how the kernels write it.

    arguments: of `_native.LinearWeight`, from the bias to the zero point of y
    is_codes: whether it is codes; parts: kept alive for `arguments`
    """

    y: Tensor
    arguments: tuple[Any, ...]
    is_codes: bool
    parts: QParams | None


def takes(x: Value, weight: Value, activation: str, dtype: torch.dtype) -> bool:
    """Whether the kernels run a product of these: rows of codes, and dtypes that they know."""
    if not weight.fmt or weight.data.ndim != 2 or dtype not in DTYPES:
        return False
    return activation in ACTIVATIONS and (bool(x.fmt) or x.data.dtype in DTYPES)


@cache
def all_known(spellings: tuple[str, ...]) -> bool:
    """Whether the kernels run these formats; empty ones are none."""
    return known(tuple(parse(spelling) for spelling in spellings if spelling), ())


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _, activation, dtype, y = arguments
    spellings = (x.fmt, weight.fmt, y.fmt)
    return x.data.ndim > 0 and takes(x, weight, activation, dtype) and all_known(spellings)


@kernel("fused_linear", backend="cpu", supports=_supports)
def fused_linear(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.linear."""
    whole = weight.operand
    n, (*rows, k) = whole.codes.shape[0], x.data.shape
    k = x.size if x.fmt else k
    if k != whole.size:
        raise ValueError(f"expected x of shape [..., {whole.size}], found {(*rows, k)}")
    offset = None if bias is None else float_bias(bias, n)
    result, shape = Result(offset, activation, dtype, y), (*rows, n)
    ready = linear_weight(whole)
    if x.fmt and k and 0 not in shape:
        block = row_block(x.fmt, len(rows) + 1)
        if block is not None:
            form = native(x.fmt)
            codes = form.checked_codes(x.data, (*rows, k))
            parts = given_parts(form, (*rows, k), x)
            size = min(block, k)
            output = from_codes(ready, codes, parts, form, size, (), shape, result)
            if output is not None:
                return output
    values = dequantize(x.operand, torch.float32) if x.fmt else x.data
    return _from_floats(ready, values, shape, result)


def given_parts(form: NativeFormat, shape: Sequence[int], value: Value) -> QParams:
    """The parts beside codes of this shape; one scale for all of them may have any rank."""
    assert value.scale is not None
    zero_point, scale = value.zero_point, value.scale
    if scale.ndim != len(shape) and scale.numel() == 1:
        whole = (1,) * len(shape)
        scale = scale.reshape(whole)
        zero_point = None if zero_point is None else zero_point.reshape(whole)
    return form.checked_parts(shape, scale, zero_point, value.outer, more=value.more)


def from_codes(
    ready: Any,
    codes: Tensor,
    parts: QParams,
    form: NativeFormat,
    block: int,
    places: Sequence[int],
    shape: tuple[int, ...],
    result: Result,
) -> list[Tensor] | None:
    """The product of integers, [*shape] or its codes; None where integer arithmetic cannot give it.

    codes, parts: of x, in order; block: elements of a row that share a scale, 0: one for all of x
    places: of a convolution: numbers as `window` of src/bind_linear.cpp takes them; () without
    """
    scale, _, zero_point, _ = addresses(parts)
    return run_to_end(
        lambda end: ready.codes(
            form.handle, codes.data_ptr(), prod(shape[:-1]), block, scale, zero_point,
            parts.scale.numel(), places, *end.arguments, threads(),
        ),
        shape, result,
    )  # fmt: skip


def run_to_end(
    run: Callable[[SumsEnd], bool], shape: tuple[int, ...], result: Result
) -> list[Tensor] | None:
    """The result [*shape] of a kernel, `run`, and what follows; None where that gives nothing."""
    end = _end_of(result, shape)
    if not run(end):
        if not end.is_codes:
            return None
        plain = result._replace(y=UNQUANTIZED)  # perhaps without codes of results
        output = run_to_end(run, shape, plain)
        return None if output is None else _quantized(output[0], result.y)
    return [end.y] if end.is_codes else _quantized(end.y, result.y)


def _end_of(result: Result, shape: tuple[int, ...]) -> SumsEnd:
    end = _end(result.y, shape)
    handle, parts, into, image = None, None, NO_PARTS, 0
    if end is not None:
        form, parts = end
        y, handle, into = form.new_packed(shape), form.handle, addresses(parts)
    elif result.channels_first:
        image = prod(shape[1:-1])
        y = new((shape[0], shape[-1], *shape[1:-1]), result.dtype)
    else:
        y = new(shape, result.dtype)
    bias = 0 if result.bias is None else result.bias.data_ptr()
    dtype = DTYPES[result.dtype]
    activation = ACTIVATIONS[result.activation]
    arguments = bias, activation, y.data_ptr(), dtype, image, handle, into[0], into[2]
    return SumsEnd(y, arguments, end is not None, parts)


def _end(y: Quantizer, shape: tuple[int, ...]) -> tuple[NativeFormat, QParams] | None:
    """The result's format and parts where the kernel can end in codes: one given scale."""
    if not y.fmt or y.scale is None or row_block(y.fmt, len(shape)) != 0:
        return None
    form = native(y.fmt)
    value = Value(y.scale, y.scale, y.zero_point, y.outer, y.fmt, shape[-1], y.more)
    return form, given_parts(form, shape, value)


def _quantized(y: Tensor, by: Quantizer) -> list[Tensor]:
    """Floats as the op gives them."""
    if not by.fmt:
        return [y]
    return choose_quantize(y, by.fmt, by.seed) if by.scale is None else [quantize(y, by)]


def _from_floats(ready: Any, x: Tensor, shape: tuple[int, ...], result: Result) -> list[Tensor]:
    """The product of float x and the decoded weight."""
    x, dtype = floats(x)
    y = new(shape, result.dtype)
    bias = result.bias
    if not y.numel() or not x.numel():
        y.zero_() if bias is None else y.copy_(bias)
    else:
        ready.floats(
            x.data_ptr(), dtype, y.numel() // shape[-1], 0 if bias is None else bias.data_ptr(),
            y.data_ptr(), DTYPES[y.dtype], threads(),
        )  # fmt: skip
    return finish(y, result)


def finish(y: Tensor, result: Result) -> list[Tensor]:
    """Sums with their bias [...], in order, which may be overwritten, as the op gives them."""
    return _quantized(_activate(y, result.activation), result.y)


def _activate(y: Tensor, activation: str) -> Tensor:
    """y [...], which may be overwritten, after the activation."""
    if not activation:
        return y
    wide = y.to(torch.float32)
    _native.activate(ACTIVATIONS[activation], wide.data_ptr(), wide.numel(), threads())
    return wide.to(y.dtype)


# Rows of a quantized table.


@kernel("embedding", backend="cpu", supports=known)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding. Raises IndexError for an index that is no row."""
    n, size = native(weight.fmt), weight.size
    table = (weight.codes.shape[0], size)
    codes = n.checked_codes(weight.codes, table)
    parts = n.checked_parts(table, weight.scale, weight.zero_point, weight.outer, more=weight.more)
    if indices.dtype not in (torch.int64, torch.int32) or not indices.is_cpu:
        raise IndexError(
            f"expected int64 or int32 indices on the CPU, found {indices.dtype} on {indices.device}"
        )
    rows = in_order(indices.to(torch.int64))
    kind = DTYPES.get(dtype, 0)
    shape = (*indices.shape, size)
    values = torch.empty(shape, dtype=dtype if dtype in DTYPES else torch.float32)
    if rows.numel() and not _native.embedding(
        n.handle, *table, codes.data_ptr(), addresses(parts), rows.data_ptr(), rows.numel(),
        values.data_ptr(), kind, threads(),
    ):  # fmt: skip
        low, high = int(rows.min()), int(rows.max())
        raise IndexError(
            f"index out of range: found {low} ... {high} for a table of {table[0]} rows"
        )
    return values if values.dtype == dtype else values.to(dtype)


# Formats that the CPU's kernels know only restated.

OPS = register("cpu", fingerprint, block_errors)
