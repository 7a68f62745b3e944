"""How the work of hopper/linear.py is laid out: what it reads, x in order, who sums which steps."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.matmul import linear_asm, linear_pairs, linear_tile
from blockscale.kernels.cuda.matmul.linear_launch import PARTS, Tile
from blockscale.kernels.cuda.matmul.linear_reading import Reading
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2

WORDS = 16  # of a row at a time
_REGISTERS = 65536  # of a processor
_SHARED = 220 * 1024  # bytes of shared memory that a program may have, less some for what it writes


def takes(r: Reading, tile: Tile | None = None) -> bool:
    """Whether the kernel knows how to read the weight: elements of 1, 2, 4 and 8 bits, the sums of
    whose blocks have no scales of their own or, where they have, in blocks of 32 codes or more; and
    6 bits. tile: whether its rows are what registers and shared memory hold."""
    rows = tile.rows if tile else 64
    if tile and stages(r, rows, tile.outputs, max(tile.stages, 1)) < 2:
        return False  # a step's codes are opened before those before it are done with
    if slots(r):
        small = r.per_block and r.width <= 64 and r.planes < 16
        return 16 <= rows <= (192 if small else 128 if r.planes < 32 else 64)
    if rows & (rows - 1):
        return False
    if six(r):
        return True
    return r.planes in (4, 8) and (not r.per_block or (r.words % WORDS == 0 and rows <= 128))


def stages(r: Reading, rows: int, outputs: int, programs: int) -> int:
    """How many steps fit in a program's shared memory at once. programs: that share a processor"""
    step = rows * step_codes(r) * 2 + (0 if six(r) else outputs * WORDS * 4)
    return min(8, _SHARED // programs // step)


def step_codes(r: Reading) -> int:
    """Codes of a row in a step."""
    return r.planes * WORDS or 128


def six(r: Reading) -> bool:
    """Whether codes are 6 bits that the kernel reads: 32 in six words, of one scale."""
    return not r.planes and bool(r.pairs.program)


def arrangement(r: Reading) -> tuple[int, int]:
    """How many codes lie together, and what `order` calls SLOTS."""
    if six(r):
        return 32, 16
    apart = r.pairs.order[1] != 1
    return r.planes, (r.planes // 2 if apart else 1) if slots(r) else 0


def slots(r: Reading) -> bool:
    """Whether codes are read by slots: four words, one for each of the threads that share a row, so
    that what a tensor core takes at once is of one block. Blocks of whole steps go without, where
    they have no zero points: then larger products and two groups of warps in turn are faster."""
    if not r.per_block:
        return r.planes > 8 and not r.fold
    if r.planes in (4, 8) and r.words >= WORDS and not (r.zero and r.planes == 8):
        return False
    return r.words >= max(32 // r.planes, 4) if r.planes > 4 else r.words == 8 and not r.zero


@dataclass(frozen=True)
class Work:
    """What hopper.linear is compiled for, beside dtypes.

    front, back: PTX that decodes the first four codes of two words, and the last four; by slots,
        pairs of codes of two words, all of them at once; of 6 bits, the first and last eight
    rows, outputs: of a tile
    block: steps whose sums meet a scale, or leave the tensor cores, on their own; 0 for none
    mode: see hopper.linear.multiply
    programs: that share a processor
    asm: the registers of the PTX, by slots and of 6 bits
    deep: steps that are one piece of the program
    """

    reading: Reading
    front: str
    back: str
    rows: int
    outputs: int
    block: int
    mode: int
    programs: int = 1
    asm: str = ""
    deep: int = 1

    @property
    def six(self) -> bool:
        """Whether codes are 6 bits."""
        return six(self.reading)

    @property
    def codes(self) -> int:
        """Of a row in a step."""
        return step_codes(self.reading)

    @property
    def stages(self) -> int:
        """How many steps fit in a program's shared memory at once."""
        return stages(self.reading, self.rows, self.outputs, self.programs)

    @property
    def shares(self) -> int:
        """Groups of warps that multiply: two if one can scale sums while the other goes on."""
        return 2 if self.block and self.outputs == 128 and not self.six else 1

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
    def slots(self) -> bool:
        """Whether codes are read by slots."""
        return slots(self.reading)

    @property
    def part(self) -> int:
        """Rows that are multiplied at a time: by slots half, while the others meet scales."""
        return min(64, self.rows // 2) if self.slots else self.rows

    @property
    def parts(self) -> int:
        """That the rows are, by slots."""
        return self.rows // self.part

    @property
    def split(self) -> bool:
        """Whether parts are tiles of their own: rows are then no power of two."""
        return bool(self.rows & (self.rows - 1))

    @property
    def box(self) -> int:
        """Rows of x that are copied at a time."""
        return self.part if self.split else self.rows

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
        return max(WORDS // self.reading.words, 1) if self.reading.words else 1


def deep(tile: Tile, block: int) -> int:
    """How many steps are one piece of the program, where their blocks are no larger than a step."""
    return tile.warps // 4 if block == 1 else 1


@cache
def work(r: Reading, tile: Tile, block: int, mode: int) -> Work:
    """The Work of a weight and a tile."""
    e, asm = r.element, ""
    if six(r):
        front, back = (linear_pairs.six_turn(e, half, bool(r.fold)) for half in range(2))
        asm = linear_asm.constraints(16, 13 if r.fold else 12)
    elif slots(r):
        front, back = linear_pairs.decode(e, None, "zero" if r.zero else ""), ""
        asm = linear_asm.constraints(r.planes, 4 if r.zero else 2)
    else:
        small = e.family == "minifloat" and e.bits < 8 and e.bias < 127  # as linear_reading has it
        lift = 0 if small and r.fold == "codes" else None
        halves = (range(4), range(r.planes - 4, r.planes))
        front, back = (linear_asm.decode_words(e, lift, half) for half in halves)
    return Work(
        r,
        front,
        back,
        tile.rows,
        tile.outputs,
        block,
        mode,
        max(tile.stages, 1),
        asm,
        deep(tile, block),
    )


@triton.jit(do_not_specialize=["rows"])
def order(
    x, out, rows, k, stride, width, PLANES: tl.constexpr, SLOTS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, k] -> out bfloat16 [PARTS * rows, width], split as by arrange.

    A row is its groups of 16 words; in a group come the first codes of all words, then the second
    ones … width: that of whole groups, of which what x lacks becomes zeros.
    SLOTS: 0, or the order is that of linear_slots.operand: four words after four, of which come two
        pairs of codes of each, their first pairs before their second. A pair is i and SLOTS + i
        or, where SLOTS is 1, 2 i and 2 i + 1
    """
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, PLANES)
    at = word[:, None] * PLANES + i[None, :]
    rest = tl.load(x + row * stride + at, mask=at < k, other=0.0)
    rest = rest.to(tl.float32)
    if SLOTS == 0:
        to = (word // 16 * (16 * PLANES) + word % 16)[:, None] + i[None, :] * 16
    else:
        pair, second = i // 2, i % 2
        if SLOTS > 1:
            pair, second = i % SLOTS, i // SLOTS
        inside = pair // 2 * 16 + pair % 2 * 8 + second
        to = (word // 4 * (4 * PLANES) + word % 4 * 2)[:, None] + inside[None, :]
    for part in tl.static_range(PARTS):
        head, rest = linear_tile.leading(rest, part == 0)
        at = out + (part * rows.to(tl.int64) + row) * width + to
        tl.store(at, head, mask=to < width)


def ordered(x: Tensor, planes: int, slots: int = 0) -> Tensor:
    """x [rows, k] -> bfloat16 [parts * rows, k rounded up to whole steps]. slots: as in `order`"""
    rows, k = x.shape
    words, parts = cdiv(k, planes), PARTS[x.dtype]
    width = cdiv(k, WORDS * planes) * WORDS * planes
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty((parts * rows, width), dtype=torch.bfloat16)
    block = min(power_of_2(max(words, WORDS)), 2048 // planes)
    direct(order)[(rows, cdiv(width // planes, block))](
        x, out, rows, k, x.stride(0), width,
        PLANES=planes, SLOTS=slots, PARTS=parts, BLOCK=block,
    )  # fmt: skip
    return out


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
