# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes in integer instructions: linear layers, matrices and convolutions, which
`shifted` multiplies: those in groups and transposed ones in pieces that are ordinary ones.

Few channels to an output: where x lies. Other groups: so many side by side as a
panel of the kernels has outputs, with zeros where an output does not see a channel: panels are that
wide anyway. Transposed: results that lie a stride apart see the
same cells of the kernel, so each such set is a convolution with stride 1 of x by those cells, in
reverse (Dumoulin and Visin 2016, sec. 4.6, less the products of its zeros). Each result is the sum
of one product, and ends once.
"""

from functools import cache, lru_cache
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.kernels.cpu.conv_way import lies_direct
from blockscale.kernels.cpu.integer.shifted import (
    DIRECT,
    PANEL,
    End,
    Multipliers,
    Places,
    guard_of,
    is_unchanged,
    kept_of,
    key_of,
    multiplies,
    run,
    stacked,
    takes,
)
from blockscale.kernels.cpu.integer.shifted import linear as run_linear
from blockscale.kernels.cpu.integer.shifted import matmul as run_matmul
from blockscale.kernels.cpu.integer.whole import ends, rescale
from blockscale.kernels.cpu.native import fingerprint
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel
from blockscale.kernels.resident import Residents

Sizes = tuple[int, ...]
_SMALL = 64**3  # products of a matrix; measured with 48 of them on AMX: 3 times faster at 16^2 x 64


class CodedConvolution(NamedTuple):
    """A convolution.

    sizes: of its kernel; each: channels and outputs of a group; more: output padding
    """

    sizes: Sizes
    each: tuple[int, int]
    groups: int
    transposed: bool
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    more: Sizes


class _Line(NamedTuple):
    """One dimension of a piece: every `step`-th result from `first` on, by these cells of the
    kernel; stride, padding (of the beginning, negative where x is cut off) and dilation of x."""

    first: int
    step: int
    cells: Sizes
    stride: int
    padding: int
    dilation: int


class _InPieces(NamedTuple):
    """all: the lines and weights of each piece, of groups in stacks
    guard: as `Multipliers` has it, of the whole weight; memory: what it reads
    """

    all: tuple[tuple[tuple[_Line, ...], Multipliers], ...]
    guard: Any
    memory: tuple[Any, ...]


@lru_cache(256)
def layer_of(
    shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, transposed: bool,
    more: Sizes,
) -> CodedConvolution:  # fmt: skip
    """The arguments are those of ops.integer.products.conv."""
    each = (shape[0] // groups, shape[1]) if transposed else (shape[1], shape[0] // groups)
    more = more or (0,) * len(stride)
    return CodedConvolution(shape[2:], each, groups, transposed, stride, padding, dilation, more)


@lru_cache(256)
def sizes_after(of: CodedConvolution, size: Sizes) -> Sizes:
    """The sizes of the result of x [batch, *size, channels]; below 1: there is none."""
    dims = zip(size, of.sizes, of.stride, of.padding, of.dilation, of.more, strict=True)
    if of.transposed:
        return tuple((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, d, m in dims)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in dims)


def fits(of: CodedConvolution, x: Tensor, weight: Tensor) -> bool:
    """Whether x and a weight as stored are of these sizes, and there is a result."""
    channels, outputs = of.each
    cells = torch.Size(of.sizes).numel()
    if x.ndim != len(of.sizes) + 2 or x.shape[-1] != channels * of.groups:
        return False
    if weight.shape != (outputs * of.groups, cells * channels):
        return False
    return min(sizes_after(of, tuple(x.shape[1:-1]))) > 0


def in_pieces(
    of: CodedConvolution,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x_zero: int,
    largest: int,
    end: End,
) -> Tensor:
    """Codes x [batch, *size, c] that `fits`, a weight [n, k] as stored -> codes or sums."""
    size, n = tuple(x.shape[1:-1]), weight.shape[0]
    whole = (x.shape[0], *sizes_after(of, size), n)
    directly = _directly(of)
    if not of.transposed and (of.groups == 1 or directly):  # the weight as it is
        (lines,) = _sets(of)
        numbers = _numbers(lines, size, whole[1:-1], x.shape[-1])
        multipliers = kept_of(x, weight, bias, largest, end, of.each[0])
        places = Places(numbers, of.groups if directly else 0)
        return run(multipliers, x, x_zero, places, whole, end)
    ready = _ready(of)[Operand(weight, end[0], bias, None, key_of(x, largest, end[4]), 0)]
    stacks, each = _stacks(of), [count * _together(of) for count in of.each]
    x = _apart(x, stacks, each[0], x_zero)
    y = None
    for lines, multipliers in ready.all:
        out = tuple(
            len(range(line.first, n, line.step)) for line, n in zip(lines, whole[1:-1], strict=True)
        )
        if 0 in out:
            continue
        shape = (stacks, whole[0], *out, each[1])
        places = Places(_numbers(lines, size, out, each[0]))
        part = run(multipliers, x, x_zero, places, shape, end)
        y = new((*whole[:-1], stacks, each[1]), part.dtype) if y is None else y
        y[(slice(None), *(slice(line.first, None, line.step) for line in lines))] = part.movedim(
            0, -2
        )
    assert y is not None
    y = y.flatten(-2)
    return y if y.shape[-1] == n else y[..., :n].contiguous()


def _directly(of: CodedConvolution) -> bool:
    """Whether x is multiplied where it lies (src/isa/linear/direct.cpp): by the rule for float
    scales, and as long as float32 holds the sums of codes."""
    channels, outputs = of.each
    if of.transposed or torch.Size(of.sizes).numel() * channels > DIRECT:
        return False
    return lies_direct((outputs * of.groups, channels), of.groups)


def _apart(x: Tensor, stacks: int, channels: int, zero: int) -> Tensor:
    """Codes x [..., c] -> [stacks, ..., channels], behind the last of c the zero point."""
    missing = stacks * channels - x.shape[-1]
    if missing:
        x = pad(x, (0, missing), value=zero)
    return x.unflatten(-1, (stacks, channels)).movedim(-2, 0)


def _stacks(of: CodedConvolution) -> int:
    """How many panels of groups there are."""
    return -(-of.groups // max(1, PANEL // of.each[1]))


def _together(of: CodedConvolution) -> int:
    """How many groups are side by side in each; in the last one fewer."""
    return -(-of.groups // _stacks(of))


@lru_cache(1024)
def _numbers(lines: tuple[_Line, ...], size: Sizes, out: Sizes, channels: int) -> Sizes:
    """As `window` of src/bind_linear.cpp takes them."""
    kernel = (len(line.cells) or 1 for line in lines)
    stride, padding, dilation = zip(*(line[3:] for line in lines), strict=True)
    return (*kernel, *size, *out, *stride, *padding, *dilation, channels)


@cache
def _ready(of: CodedConvolution) -> Residents[_InPieces]:
    """Weights as stored, in pieces."""
    return Residents(lambda weight: _make(of, weight), fingerprint, is_unchanged)


def _make(of: CodedConvolution, weight: Operand) -> _InPieces:
    """weight: as `make` of `shifted` takes it, but for the size."""
    codes = in_order(weight.codes)
    guard, memory = guard_of(codes)
    memory = memory if codes is weight.codes else (*memory, codes)
    channels, outputs = of.each
    stacks, together = _stacks(of), _together(of)
    missing = stacks * together - of.groups
    stored = codes.reshape(of.groups, outputs, *of.sizes, channels)
    if missing:
        stored = torch.cat([stored, stored.new_zeros(missing, *stored.shape[1:])])
    bias, shift = weight.zero_point, weight.scale
    if bias is not None:
        bias = pad(bias, (0, missing * outputs)).view(stacks, -1)
    if shift.numel() > 1:
        shift = pad(shift, (0, missing * outputs)).view(stacks, -1)
    pieces = []
    for lines in _sets(of):
        cells = _cells_of(stored, lines).unflatten(0, (stacks, together))
        matrices = torch.stack([_side_by_side(each) for each in cells])
        multipliers = stacked(matrices, bias, shift, weight.fmt, together * channels)
        pieces.append((lines, multipliers))
    return _InPieces(tuple(pieces), guard, memory)


def _cells_of(stored: Tensor, lines: tuple[_Line, ...]) -> Tensor:
    """Of a weight [groups, outputs, *sizes, channels] the cells of a piece; where there are none,
    one of zeros."""
    for at, line in enumerate(lines, 2):
        if line.cells:
            stored = stored.index_select(at, torch.tensor(line.cells))
        else:
            stored = torch.zeros_like(stored.narrow(at, 0, 1))
    return stored


def _side_by_side(stored: Tensor) -> Tensor:
    """A weight [groups, outputs, *sizes, channels] -> [groups * outputs, k], of all channels."""
    groups, outputs, *sizes, channels = stored.shape
    y = stored.new_zeros(groups, outputs, *sizes, groups, channels)
    for group in range(groups):
        y[group, ..., group, :] = stored[group]
    return y.reshape(groups * outputs, -1)


@lru_cache(256)
def _sets(of: CodedConvolution) -> list[tuple[_Line, ...]]:
    """The pieces along the sizes of x: one, if transposed one for each place within a stride."""
    sets: list[tuple[_Line, ...]] = [()]
    for k, s, p, d in zip(of.sizes, of.stride, of.padding, of.dilation, strict=True):
        lines = [_Line(0, 1, tuple(range(k)), s, p, d)]
        if of.transposed:
            lines = [_line(place, k, s, p, d) for place in range(s)]
        sets = [(*before, line) for before in sets for line in lines]
    return sets


def _line(place: int, k: int, s: int, p: int, d: int) -> _Line:
    """Of a transposed convolution: result o = i s - p + j d is of cell i of x and j of the kernel.

    Those at o = s q + place take every (s / gcd(s, d))-th cell j, and i goes down as j goes up.
    """
    far = d // gcd(s, d)
    cells = [j for j in range(k) if (place + p - j * d) % s == 0]
    if not cells:
        return _Line(place, s, (), 1, 0, 1)
    back = (len(cells) - 1) * far - (place + p - cells[0] * d) // s
    return _Line(place, s, (*reversed(cells),), 1, back, far)


def _supports_linear(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _bias, x_zero, *_, fmt = arguments
    return x.shape[-1] == weight.shape[1] and takes(x, weight, x_zero, fmt)


@kernel("integer_linear", backend="cpu", supports=_supports_linear)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, x_zero: int, largest: int, shift: Tensor,
    zero: int, low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.linear."""
    return run_linear(x, weight, bias, x_zero, largest, (shift, zero, low, high, fmt))


def _supports_conv(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _, *settings, x_zero, _, _, _, _, _, fmt = arguments
    return takes(x, weight, x_zero, fmt) and fits(_layer(*settings), x, weight)


@kernel("integer_conv", backend="cpu", supports=_supports_conv)
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int], stride: list[int],
    padding: list[int], dilation: list[int], groups: int, transposed: bool,
    output_padding: list[int], x_zero: int, largest: int, shift: Tensor, zero: int, low: int,
    high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.conv."""
    end = (shift, zero, low, high, fmt)
    of = _layer(shape, stride, padding, dilation, groups, transposed, output_padding)
    return in_pieces(of, x, weight, bias, x_zero, largest, end)


def _layer(
    shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int,
    transposed: bool, output_padding: list[int],
) -> CodedConvolution:  # fmt: skip
    each = (tuple(numbers) for numbers in (shape, stride, padding, dilation))
    return layer_of(*each, groups, transposed, tuple(output_padding))


def _supports_matmul(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    a, b, a_zero, b_zero, *_, fmt = arguments
    return multiplies(a, b, a_zero, b_zero, fmt)


def _many_small(a: Tensor, b: Tensor, largest: int) -> bool:
    """Whether to multiply in one float product of all matrices, which holds every sum exactly: a
    call for each takes longer than its product where matrices are small, such as an attention's."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    count = max(a.numel() // (m * k), b.numel() // (k * n))
    return count > 1 and m * k * n < _SMALL and largest <= 2**24


@kernel("integer_matmul", backend="cpu", supports=_supports_matmul)
def matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, largest: int, shift: Tensor, zero: int,
    low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.matmul."""
    if _many_small(a, b, largest) and ends(fmt, shift):
        with float32_inside(a):
            sums = torch.matmul(a.float() - a_zero, b.float() - b_zero).to(torch.int32)
        return rescale(sums, 0, shift, zero, low, high, fmt)
    return run_matmul(a, b, a_zero, b_zero, largest, (shift, zero, low, high, fmt))
