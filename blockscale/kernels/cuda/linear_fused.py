"""Some dozens to thousands of rows on a Hopper: codes decoded beside the tensor cores' work.

The device code is hopper/linear.py, in Gluon, which Triton calls experimental: it is used with the
versions of Triton that it was tested with, and where the copy engine can read the weight.
"""

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda import interpreting, linear_asm, linear_tile
from blockscale.kernels.cuda.direct import cdiv, direct, power_of_2
from blockscale.kernels.cuda.linear_launch import PARTS, Ends, Tile, Weight, as_words, row_steps
from blockscale.kernels.cuda.linear_reading import Reading
from blockscale.kernels.cuda.numerics import narrow

TESTED = ("3.6",)  # versions of Triton
WORDS = 16  # of a row at a time
_UNFLUSHED = 1024  # products that a tensor core, which truncates, adds up where more bits show
_REGISTERS = 65536  # of a processor
_SHARED = 226 * 1024  # bytes of shared memory that a program may have, less some for barriers


@cache
def unusable(device: int) -> str | None:
    """Why the kernels in hopper/ cannot run on this GPU, or None if they can.

    BLOCKSCALE_GLUON=1 lets a Triton run them that they were not tested with, 0 none.
    """
    if interpreting():
        return "Triton's interpreter does not run Gluon"
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        return f"compute capability {major}.{minor} is not 9.0"
    wish = os.environ.get("BLOCKSCALE_GLUON", "")
    if wish == "0":
        return "BLOCKSCALE_GLUON is 0"
    version = ".".join(triton.__version__.split(".")[:2])
    if version in TESTED or wish == "1":
        return None
    reason = f"Triton {version} is not among those they were tested with: {', '.join(TESTED)}"
    warnings.warn(
        f"blockscale's kernels for Hopper are left out: {reason}. Linear layers take slower ways; "
        "BLOCKSCALE_GLUON=1 uses the kernels all the same, 0 silences this",
        stacklevel=2,
    )
    return reason


def readable(codes: Tensor) -> bool:
    """Whether the copy engine can read the codes: rows that begin at multiples of 16 bytes."""
    at = codes.data_ptr() | codes.stride(0) * codes.itemsize
    return codes.stride(-1) == 1 and at % 16 == 0


def can(codes: Tensor) -> bool:
    """Whether the kernel can run on these codes [n, bytes], where they are."""
    return codes.is_cuda and unusable(codes.device.index or 0) is None and readable(codes)


def takes(r: Reading, tile: Tile | None = None) -> bool:
    """Whether the kernel knows how to read the weight: 4 or 8 bits, blocks that are whole steps."""
    if r.planes not in (4, 8):
        return False
    return not r.per_block or (r.words % WORDS == 0 and (tile is None or tile.rows <= 128))


@dataclass(frozen=True)
class Work:
    """What hopper.linear is compiled for, beside dtypes.

    front, back: PTX that decodes the first four codes of two words, and the last four
    rows, outputs: of a tile
    block: steps whose sums meet a scale, or leave the tensor cores, on their own; 0 for none
    mode: see hopper.linear.multiply
    programs: that share a processor
    """

    reading: Reading
    front: str
    back: str
    rows: int
    outputs: int
    block: int
    mode: int
    programs: int = 1

    @property
    def stages(self) -> int:
        """How many steps fit in a program's shared memory at once."""
        step = self.rows * self.reading.planes * WORDS * 2 + self.outputs * WORDS * 4
        return min(8, _SHARED // self.programs // step)

    @property
    def shares(self) -> int:
        """Groups of warps that multiply: two if one can scale sums while the other goes on."""
        return 2 if self.block and self.outputs == 128 else 1

    @property
    def warps(self) -> int:
        """Of a group."""
        return self.outputs // self.shares // 16

    @property
    def registers(self) -> int | None:
        """What a thread may have on the average for several programs to fit, in eights."""
        threads = (self.outputs // 16 + 4) * 32
        return _REGISTERS // (threads * self.programs) // 8 * 8 if self.programs > 1 else None

    @property
    def halves(self) -> int:
        """Turns of a step: four codes of a word each."""
        return self.reading.planes // 4

    @property
    def columns(self) -> int:
        """How many blocks of a row a step begins or goes on with."""
        return max(WORDS // self.reading.words, 1) if self.reading.words else 1


@cache
def work(r: Reading, tile: Tile, block: int, mode: int) -> Work:
    """The Work of a weight and a tile."""
    e = r.element
    small = e.family == "minifloat" and e.bits < 8 and e.bias < 127  # as linear_reading has it
    lift = 0 if small and r.fold == "codes" else None
    halves = (range(4), range(r.planes - 4, r.planes))
    front, back = (linear_asm.decode_words(e, lift, half) for half in halves)
    return Work(r, front, back, tile.rows, tile.outputs, block, mode, max(tile.stages, 1))


@triton.jit(do_not_specialize=["rows"])
def order(
    x, out, rows, words, stride, width, PLANES: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, words * PLANES] -> out bfloat16 [PARTS * rows, width], split as by arrange.

    A row is its groups of 16 words; in a group come the first codes of all words, then the second
    ones … width: that of whole groups, of which what x lacks becomes zeros.
    """
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, PLANES)
    mask = (word < words)[:, None] & (i < PLANES)[None, :]
    rest = tl.load(x + row * stride + word[:, None] * PLANES + i[None, :], mask=mask, other=0.0)
    rest = rest.to(tl.float32)
    to = (word // 16 * (16 * PLANES) + word % 16)[:, None] + i[None, :] * 16
    for part in tl.static_range(PARTS):
        head, rest = linear_tile.leading(rest, part == 0)
        at = out + (part * rows.to(tl.int64) + row) * width + to
        tl.store(at, head, mask=to < width)


def ordered(x: Tensor, planes: int) -> Tensor:
    """x [rows, k] -> bfloat16 [parts * rows, k rounded up to whole steps]."""
    rows, k = x.shape
    words, parts = k // planes, PARTS[x.dtype]
    width = cdiv(words, WORDS) * WORDS * planes
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty((parts * rows, width), dtype=torch.bfloat16)
    block = min(power_of_2(max(words, WORDS)), 2048 // planes)
    direct(order)[(rows, cdiv(width // planes, block))](
        x, out, rows, words, x.stride(0), width, PLANES=planes, PARTS=parts, BLOCK=block
    )
    return out


@triton.jit(do_not_specialize=["rows", "whole", "tail"])
def finish_tail(
    parts, x_row, bias, out, rows, n, whole, tail,
    COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """float32 parts [COUNT, tail, BM, BN] of the tiles from `whole` on -> out [rows, n]."""
    tile = tl.program_id(0)
    pm, pn = linear_tile.place(whole + tile, rows, n, BM, BN)
    local = tl.program_id(1) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BN)
    sums = tl.zeros((LINES, BN), tl.float32)
    for i in tl.static_range(COUNT):
        at = (i * tail + tile).to(tl.int64) * BM * BN
        sums += tl.load(parts + at + local[:, None] * BN + column[None, :])
    rm, rn = pm * BM + local, pn * BN + column
    if x_row is not None:
        sums *= tl.load(x_row + rm, mask=rm < rows, other=0.0)[:, None]
    if bias is not None:
        sums += tl.load(bias + rn, mask=rn < n, other=0.0).to(tl.float32)[None, :]
    to = out + rm.to(tl.int64)[:, None] * n + rn[None, :]
    tl.store(to, narrow(sums, out.dtype.element_ty), mask=(rm < rows)[:, None] & (rn < n)[None, :])


class Cut(NamedTuple):
    """How k and the tiles are divided: hopper.linear.multiply says what each means."""

    mode: int
    grid: tuple[int, int]
    steps: int
    whole: int
    tail: int
    all_steps: int
    pieces: int


def cut(tiles: int, total: int, unit: int, tile: Tile, parts: int, processors: int) -> Cut:
    """tiles: of the result; total: steps along k, in units that stay together.

    tile.chunks divide k for all tiles; tile.unroll for those of the last wave, which is not full.
    """
    if parts > 1 or tile.chunks > 1:
        steps = cdiv(total, unit * tile.chunks) * unit
        pieces = cdiv(total, steps)
        return Cut(int(parts * pieces > 1), (tiles, pieces), steps, 0, 1, steps, pieces)
    whole = tiles - tiles % processors
    tail, full = tiles - whole, cdiv(total, unit) * unit
    if tile.unroll == 1 or not tail:
        return Cut(0, (tiles, 1), full, 0, 1, full, 1)
    steps = cdiv(total, unit * tile.unroll) * unit
    pieces = cdiv(total, steps)
    return Cut(2, (whole + pieces * tail, 1), steps, whole, tail, full, pieces)


@cache
def processors(device: int) -> int:
    """How many programs run at a time."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def fused(
    x: Tensor, weight: Weight, fmt: str, r: Reading, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype.

    tile.stages: programs that share a processor; tile.warps does not count
    """
    rows, n = x.shape[0], weight.codes.shape[0]
    ready, parts = ordered(x, r.planes), PARTS[x.dtype]
    step = WORDS * r.planes
    short = parts == 1 and dtype is torch.bfloat16  # what hides the bits that tensor cores drop
    block = r.words // WORDS if r.per_block else (0 if short else _UNFLUSHED // step)
    if block and tile.rows > 128:  # two sets of sums: no more fit
        tile = tile._replace(rows=128)
    tiles = cdiv(parts * rows, tile.rows) * cdiv(n, tile.outputs)
    total, unit = cdiv(ready.shape[1], step), block or 8 // r.planes
    c = cut(tiles, total, unit, tile, parts, processors(x.device.index or 0))
    t = work(r, tile, block, c.mode)
    y = x.new_empty((rows, n), dtype=dtype)
    out, held = y, None
    if c.mode == 1:
        out = x.new_empty((c.pieces * parts, rows, n), dtype=torch.float32)
    elif c.mode == 2:
        held = x.new_empty((c.pieces, c.tail, t.rows, t.outputs), dtype=torch.float32)
    now = Ends(None, None) if c.mode == 1 else ends
    _launch(ready, weight, row_steps(weight, fmt, r), now, out, held, c, t)
    if c.mode == 1:
        size = min(power_of_2(n), 1024)
        direct(linear_tile.finish)[(rows, cdiv(n, size))](
            out, None, ends.x_row, ends.bias, y, rows, n, 0, n, count=c.pieces * parts, BLOCK=size
        )
    elif c.mode == 2:
        direct(finish_tail)[(c.tail, t.rows // 16)](
            held, ends.x_row, ends.bias, y, rows, n, c.whole, c.tail,
            COUNT=c.pieces, BM=t.rows, BN=t.outputs, LINES=16,
        )  # fmt: skip
    return y


def _launch(
    x: Tensor,
    weight: Weight,
    row: tuple[Tensor | None, int],
    ends: Ends,
    out: Tensor,
    held: Tensor | None,
    c: Cut,
    t: Work,
) -> None:
    """hopper.linear.multiply on x [rows, k] in order."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from blockscale.kernels.cuda.hopper.linear import multiply

    words: Any = as_words(weight.codes)
    step = WORDS * t.reading.planes
    x_at = TensorDescriptor.from_tensor(x, [t.rows, step], NVMMASharedLayout(128, 16, 2))
    w_at = TensorDescriptor.from_tensor(words, [t.outputs, WORDS], NVMMASharedLayout(64, 32, 2))
    direct(multiply)[c.grid](
        x_at, w_at, weight.scale, weight.zero_point, row[0], ends.x_row, ends.bias, out, held,
        x.shape[0], words.shape[0], weight.scale.stride(0) if weight.scale.shape[0] > 1 else 0,
        weight.scale.shape[-1], row[1], c.steps, c.whole, c.tail, c.all_steps,
        T=t, num_warps=t.warps, maxnreg=t.registers,
    )  # fmt: skip
