# SPDX-License-Identifier: BSD-3-Clause
"""What the way "fused" compiles its kernel for: weights and tiles that it takes, and its plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.device.numerics import narrow
from blockscale.kernels.cuda.matmul import ptx, ptx_pairs
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, finish_sums, result
from blockscale.kernels.cuda.matmul.operands import (
    OutputFactors,
    ProductCall,
    Weight,
    as_words,
    columns,
    output_factors,
    scale_stride,
    tile_rows,
)
from blockscale.kernels.cuda.matmul.order import PARTS, STEP_WORDS, for_fused
from blockscale.kernels.cuda.matmul.reading import Reading
from blockscale.kernels.cuda.matmul.tile import place
from blockscale.kernels.cuda.relaunch import cdiv, direct

_REGISTERS = 65536  # of a processor
_SHARED = 220 * 1024  # bytes of shared memory that a program may have, less some for what it writes


class FusedSettings(NamedTuple):
    """rows, outputs: of x and of the weight in a tile
    programs: that share a processor; 0 as 1, with all the registers that a thread may have
    split_k: programs that divide k among them, for each tile
    split_tail: likewise for the tiles of the last wave, which do not fill the GPU
    unroll: steps along k that are one piece of the program, where blocks are no larger than a step
    """

    rows: int
    outputs: int
    programs: int = 0
    split_k: int = 1
    split_tail: int = 1
    unroll: int = 1

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "FusedSettings":
        """The settings of a table's entry, which has four warps for each step of `unroll`."""
        rows, outputs, _, warps, programs, split_k, split_tail = columns(numbers)
        return cls(rows, outputs, programs, split_k, split_tail, warps // 4)

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        rows, outputs, programs, split_k, split_tail, unroll = self
        return (rows, outputs, STEP_WORDS, 4 * unroll, programs, split_k, split_tail)


def takes(r: Reading, settings: FusedSettings | None = None) -> bool:
    """Whether the kernel knows how to read the weight: elements of 1, 2, 4 and 8 bits, the sums of
    whose blocks have no scales of their own or, where they have, in blocks of 32 codes or more; and
    6 bits. settings: whether their tile is what registers and shared memory hold."""
    rows = settings.rows if settings else 64
    if settings and stages(r, rows, settings.outputs, max(settings.programs, 1)) < 2:
        return False  # a step's codes are opened before those before it are done with
    if slots(r):
        small = r.per_block and r.width <= 64 and r.planes < 16
        return 16 <= rows <= (192 if small else 128 if r.planes < 32 else 64)
    if rows & (rows - 1):
        return False
    if r.six_bits:
        return True
    whole_steps = r.words % STEP_WORDS == 0 and rows <= 128
    return r.planes in (4, 8) and (not r.per_block or whole_steps)


def stages(r: Reading, rows: int, outputs: int, programs: int) -> int:
    """How many steps fit in a program's shared memory at once. programs: that share a processor"""
    words = 0 if r.six_bits else outputs * STEP_WORDS * 4
    return min(8, _SHARED // programs // (rows * step_codes(r) * 2 + words))


def step_codes(r: Reading) -> int:
    """Codes of a row in a step."""
    return r.planes * STEP_WORDS or 128


def slots(r: Reading) -> bool:
    """Whether codes are read by slots: four words, one for each of the threads that share a row, so
    that what a tensor core takes at once is of one block. Blocks of whole steps go without, where
    they have no zero points: then larger products and two groups of warps in turn are faster."""
    if not r.per_block:
        return r.planes > 8 and not r.fold
    if r.planes in (4, 8) and r.words >= STEP_WORDS and not (r.zero and r.planes == 8):
        return False
    return r.words >= max(32 // r.planes, 4) if r.planes > 4 else r.words == 8 and not r.zero


def arrangement(r: Reading) -> tuple[int, int]:
    """`planes` and `slots` of order.for_fused: how many codes lie together, and which are pairs."""
    if r.six_bits:
        return 32, 16
    apart = r.pairs.order[1] != 1
    return r.planes, (r.planes // 2 if apart else 1) if slots(r) else 0


@dataclass(frozen=True)
class Work:
    """What hopper/fused.py is compiled for, beside dtypes. Frozen and hashable, as a Reading is.

    front, back: PTX that decodes the first four codes of two words, and the last four; by slots,
        pairs of codes of two words, all of them at once; of 6 bits, the first and last eight
    asm: the registers of the PTX, by slots and of 6 bits
    rows, outputs: of a tile
    block: steps whose sums meet a scale, or leave the tensor cores, on their own; 0 for none
    mode: see hopper.fused.multiply
    programs: that share a processor
    unroll: steps that are one piece of the program
    grouped: whether rows of x have matrices of their own, by a table
    """

    reading: Reading
    front: str
    back: str
    asm: str
    rows: int
    outputs: int
    block: int
    mode: int
    programs: int = 1
    unroll: int = 1
    grouped: bool = False

    @property
    def six_bits(self) -> bool:
        """Whether codes are 6 bits."""
        return self.reading.six_bits

    @property
    def codes(self) -> int:
        """Of a row in a step."""
        return step_codes(self.reading)

    @property
    def stages(self) -> int:
        """How many steps fit in a program's shared memory at once."""
        return stages(self.reading, self.rows, self.outputs, self.programs)

    @property
    def groups(self) -> int:
        """Groups of warps that multiply: two if one can scale sums while the other goes on."""
        return 2 if self.block and self.outputs == 128 and not self.six_bits else 1

    @property
    def alternates(self) -> bool:
        """Whether two groups take turns at the tensor cores, by barriers of their own."""
        return self.groups == 2 and not self.slots and self.halves == 2

    @property
    def warps(self) -> int:
        """Of a group."""
        return self.outputs // self.groups // 16

    @property
    def registers(self) -> int | None:
        """What a thread may have on the average for several programs to fit, in eights."""
        threads = (self.outputs // 16 + 4) * 32
        return _REGISTERS // (threads * self.programs) // 8 * 8 if self.programs > 1 else None

    @property
    def slots(self) -> bool:
        """Whether codes are read by slots."""
        return slots(self.reading)

    @property
    def share_rows(self) -> int:
        """Rows of x that are multiplied at a time: by slots a share, while another meets scales."""
        return min(64, self.rows // 2) if self.slots else self.rows

    @property
    def shares(self) -> int:
        """Into how many shares the rows of a tile are divided."""
        return self.rows // self.share_rows

    @property
    def split(self) -> bool:
        """Whether shares are tiles of their own: rows are then no power of two."""
        return bool(self.rows & (self.rows - 1))

    @property
    def box(self) -> int:
        """Rows of x that are copied at a time."""
        return self.share_rows if self.split else self.rows

    @property
    def turn(self) -> int:
        """Codes along k that are multiplied at a time."""
        if self.slots and 0 < self.reading.width < 64:
            return 32
        return max(64, 4 * self.reading.planes) if self.slots else 64

    @property
    def turns(self) -> int:
        """Of a step."""
        return self.codes // self.turn

    @property
    def halves(self) -> int:
        """Turns of a step, where those are 64 codes."""
        return self.codes // 64

    @property
    def columns(self) -> int:
        """How many blocks of a row a step begins or goes on with."""
        return max(STEP_WORDS // self.reading.words, 1) if self.reading.words else 1


def steps_together(settings: FusedSettings, block: int) -> int:
    """How many steps are one piece of the program, where their blocks are no larger than a step."""
    return settings.unroll if block == 1 else 1


@cache
def work(r: Reading, settings: FusedSettings, block: int, mode: int, grouped: bool = False) -> Work:
    """The Work of a weight and settings. block, mode, grouped: as in Work"""
    e, asm = r.element, ""
    if r.six_bits:
        front, back = (ptx_pairs.six_turn(e, half, bool(r.fold)) for half in range(2))
        asm = ptx.constraints(16, 13 if r.fold else 12)
    elif slots(r):
        front, back = ptx_pairs.decode(e, None, "zero" if r.zero else ""), ""
        asm = ptx.constraints(r.planes, 4 if r.zero else 2)
    else:
        small = e.family == "minifloat" and e.bits < 8 and e.bias < 127  # as in reading.py
        lift = 0 if small and r.fold == "codes" else None
        halves = (range(4), range(r.planes - 4, r.planes))
        front, back = (ptx.decode_words(e, lift, half) for half in halves)
    return Work(
        r,
        front,
        back,
        asm,
        settings.rows,
        settings.outputs,
        block,
        mode,
        max(settings.programs, 1),
        steps_together(settings, block),
        grouped,
    )


class Split(NamedTuple):
    """How the tiles and k are divided among programs: the arguments of hopper.fused.multiply.

    mode, steps, whole, tail, all_steps: as there; grid: of programs
    pieces: programs that divide k among them
    """

    mode: int
    grid: tuple[int, int]
    steps: int
    whole: int
    tail: int
    all_steps: int
    pieces: int


def share_out(
    tiles: int, total: int, unit: int, settings: FusedSettings, parts: int, processors: int
) -> Split:
    """tiles: of the result; total: steps along k, `unit` of which stay together; parts: of x.

    settings.split_k divides k for all tiles; split_tail for those of the last wave, which is not
    full.
    """
    if parts > 1 or settings.split_k > 1:
        steps = cdiv(total, unit * settings.split_k) * unit
        pieces = cdiv(total, steps)
        return Split(int(parts * pieces > 1), (tiles, pieces), steps, 0, 1, steps, pieces)
    whole = tiles - tiles % processors
    tail, full = tiles - whole, cdiv(total, unit) * unit
    if settings.split_tail == 1 or not tail:
        return Split(0, (tiles, 1), full, 0, 1, full, 1)
    steps = cdiv(total, unit * settings.split_tail) * unit
    pieces = cdiv(total, steps)
    return Split(2, (whole + pieces * tail, 1), steps, whole, tail, full, pieces)


# The way "fused": for more rows of x, codes are decoded while the tensor cores multiply others.
#
# It needs a Hopper (hopper/available.py), where the copy engine can read the weight. The device
# code is hopper/fused*.py; what it is compiled for stands above.

_UNFLUSHED = 1024  # products that a tensor core, which truncates, adds up where more bits show
_TAIL_LINES = 16  # rows of a tile that a program of `add_tail` has

_TO_MEASURE = (  # rows, outputs, programs that share a processor
    *((8, 64, 3), (8, 64, 4), (8, 64, 5), (8, 128, 2), (16, 64, 3), (16, 64, 4), (16, 64, 5)),
    *((16, 128, 2), (32, 64, 3), (32, 64, 4), (32, 128, 2), (64, 64, 2), (64, 64, 3)),
    *((64, 64, 0), (64, 128, 0), (128, 64, 0), (128, 64, 2), (128, 128, 0), (192, 128, 0)),
    *((256, 64, 0), (256, 128, 0)),
)


def fits(call: ProductCall, r: Reading, settings: FusedSettings) -> bool:
    """Whether the GPU runs the kernel, and the kernel takes the weight and the tile."""
    return call.fused and takes(r, settings)


def usual(call: ProductCall, r: Reading) -> FusedSettings:
    """What is taken where nothing was measured: as many rows as there are, up to what registers
    hold; fewer outputs where tiles are few."""
    rows = min(tile_rows(call.rows, 64), 256)
    while rows > 64 and not takes(r, FusedSettings(rows, 128)):
        rows //= 2
    tiles = cdiv(call.rows, rows) * cdiv(call.n, 128)
    return FusedSettings(rows, 128 if tiles > 66 else 64)


def to_measure(call: ProductCall, r: Reading) -> list[FusedSettings]:
    """What `tune` measures for a call: tiles that are not much larger than x, along k in one piece
    or, for few tiles, in more."""
    choices = []
    top = tile_rows(call.rows, 8)
    for rows, outputs, programs in _TO_MEASURE:
        if rows > top or rows * 2 < min(top, 256) or (top < 64 and rows != top):
            continue
        tiles = cdiv(call.rows, rows) * cdiv(call.n, outputs)
        splits = [(1, 1), (2, 1), (4, 1)] if tiles < 264 * max(programs, 1) else [(1, 1)]
        splits += [(1, 2), (1, 4)] if rows > 64 and 132 < tiles < 1056 else []
        unrolls = (1, 2) if slots(r) and rows >= 128 and not programs else (1,)
        for (split_k, split_tail), unroll in product(splits, unrolls):
            each = FusedSettings(rows, outputs, programs, split_k, split_tail, unroll)
            if takes(r, each):
                choices.append(each)
    return choices


@cache
def processors(device: int) -> int:
    """How many programs run at a time."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@triton.jit(do_not_specialize=["rows", "whole", "tail"])
def add_tail(
    parts, x_row, bias, out, rows, n, whole, tail,
    COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Partial sums of the tiles of the last wave, added from the first to the last and finished.

    parts: float32 [COUNT, tail, BM, BN], of the `tail` tiles from tile `whole` on
    x_row: float32 [rows] or None; bias: [n] or None; out: [rows, n]
    A program has LINES rows of one tile.
    """
    tile = tl.program_id(0)
    pm, pn = place(whole + tile, rows, n, BM, BN)
    local = tl.program_id(1) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BN)
    sums = tl.zeros((LINES, BN), tl.float32)
    for i in tl.static_range(COUNT):
        at = (i * tail + tile).to(tl.int64) * BM * BN
        sums += tl.load(parts + at + local[:, None] * BN + column[None, :])
    rm, rn = pm * BM + local, pn * BN + column
    sums = finish_sums(sums, x_row, bias, rm, rn, rows, n, 0)
    to = out + rm.to(tl.int64)[:, None] * n + rn[None, :]
    tl.store(to, narrow(sums, out.dtype.element_ty), mask=(rm < rows)[:, None] & (rn < n)[None, :])


class StackTable(NamedTuple):
    """Matrices below each other, of which the rows of x have one each: arguments of
    hopper.fused.multiply, which are described there."""

    table: Tensor | None
    matrices: int
    scale_matrix: int
    factor_matrix: int
    factor_height: int


ONE_MATRIX = StackTable(None, 1, 0, 0, 1)


def fused(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: FusedSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    rows, n = x.shape[0], weight.codes.shape[0]
    ready, parts = for_fused(x, *arrangement(r)), PARTS[x.dtype]
    step = step_codes(r)
    short = parts == 1 and dtype is torch.bfloat16  # what hides the bits that tensor cores drop
    block = max(r.words // STEP_WORDS, 1) if r.per_block else (0 if short else _UNFLUSHED // step)
    if block and not r.per_block and settings.rows > 128:  # two sets of sums: no more fit
        settings = settings._replace(rows=128)
    tiles = cdiv(parts * rows, settings.rows) * cdiv(n, settings.outputs)
    total = cdiv(ready.shape[1], step)
    unit = (block or cdiv(128, step)) * steps_together(settings, block)
    c = share_out(tiles, total, unit, settings, parts, processors(x.device.index or 0))
    t = work(r, settings, block, c.mode)
    y = result(x, n, c.pieces * parts if c.mode == 1 else 1, dtype)
    tail = None
    if c.mode == 2:
        tail = x.new_empty((c.pieces, c.tail, t.rows, t.outputs), dtype=torch.float32)
    factors = output_factors(weight, fmt, r)
    _launch(ready, weight, factors, ends if y.whole else NO_ENDS, y.sums, tail, c, t)
    if c.mode == 2:
        direct(add_tail)[(c.tail, t.rows // _TAIL_LINES)](
            tail, ends.x_row, ends.bias, y.y, rows, n, c.whole, c.tail,
            COUNT=c.pieces, BM=t.rows, BN=t.outputs, LINES=_TAIL_LINES,
        )  # fmt: skip
    return y.finish(ends)


def fused_stack(
    x: Tensor,
    weight: Weight,
    factors: OutputFactors,
    stacks: Sequence[tuple[StackTable, FusedSettings]],
    r: Reading,
    ends: Ends,
) -> Tensor:
    """x [rows, k] bfloat16 with the matrix of each row -> [rows, n] bfloat16, sums in tensor cores.

    weight: of all matrices, below each other; ends: the bias is [matrices, n]
    stacks: tables that have each row once, and the tiles of each
    """
    step, n = step_codes(r), weight.codes.shape[0] // stacks[0][0].matrices
    ready, y = for_fused(x, *arrangement(r)), x.new_empty((x.shape[0], n))
    block = max(r.words // STEP_WORDS, 1) if r.per_block else 0
    for stack, settings in stacks:
        assert stack.table is not None
        unit = (block or cdiv(128, step)) * steps_together(settings, block)
        steps = cdiv(cdiv(ready.shape[1], step), unit) * unit
        grid = stack.table.shape[0] * cdiv(n, settings.outputs), 1
        c, t = Split(0, grid, steps, 0, 1, steps, 1), work(r, settings, block, 0, True)
        _launch(ready, weight, factors, ends, y, None, c, t, stack)
    return y


def _launch(
    x: Tensor, weight: Weight, factors: OutputFactors, ends: Ends, out: Tensor,
    tail: Tensor | None, c: Split, t: Work, stack: StackTable = ONE_MATRIX,
) -> None:  # fmt: skip
    """hopper.fused.multiply on x [rows, k] in order."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from blockscale.kernels.cuda.matmul.hopper.fused import multiply

    words: Any = as_words(weight.codes)
    x_at = TensorDescriptor.from_tensor(x, [t.box, t.codes], NVMMASharedLayout(128, 16, 2))
    w_at = words
    if not t.six_bits:
        tile = [t.outputs, STEP_WORDS]
        w_at = TensorDescriptor.from_tensor(words, tile, NVMMASharedLayout(64, 32, 2))
    direct(multiply)[c.grid](
        x_at, w_at, weight.scale, weight.zero_point, factors.values, ends.x_row, ends.bias, out,
        tail, stack.table,
        x.shape[0], words.shape[0] // stack.matrices, scale_stride(weight), weight.scale.shape[-1],
        factors.stride, words.stride(0), words.shape[1],
        c.steps, c.whole, c.tail, c.all_steps,
        1 if stack.table is None else stack.table.shape[0], *stack[1:],
        T=t, num_warps=t.warps, maxnreg=t.registers,
    )  # fmt: skip
