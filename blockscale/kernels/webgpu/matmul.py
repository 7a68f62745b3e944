# SPDX-License-Identifier: BSD-3-Clause
"""A product with a quantized weight: the plan, the shaders, and the call."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import gcd, ldexp
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.probe import EXACT, DeviceArithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Roles, Shader, ShaderKernel
from blockscale.kernels.webgpu.primitives.form import StoredParams
from blockscale.kernels.webgpu.spec import STORAGE, FormatRoles, bits_of

# Which kernel multiplies, and what it is compiled for.

FEW = 4  # rows that are multiplied where a weight is decoded
_STAGED = 1024  # quads of the left factor that a workgroup has at hand, of four numbers each
_BUSY = 512  # workgroups that keep a large GPU busy


class Plan(NamedTuple):
    """kernel: its name; constants: what it is compiled for; sizes: what its launch adds."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    sizes: dict[str, int]
    groups: int


@cache
def plan(
    batches: int, rows: int, outputs: int, inner: int, chunk: str, quads: int, alone: bool = False
) -> Plan:
    """How to multiply [batches, rows, inner] and [outputs, inner].

    chunk, quads: how few rows read the right factor ("" if they cannot), and how many fours of its
        columns a lane does at once
    alone: each row has workgroups of its own
    """
    if chunk and (alone or rows <= FEW):
        return _few(rows, outputs, inner, quads, 1 if alone else 1 << (rows - 1).bit_length())
    return _many(batches, rows, outputs)


def _few(rows: int, outputs: int, inner: int, quads: int, together: int) -> Plan:
    """together: rows of a workgroup, a power of two"""
    room = _STAGED // (together * quads)
    team = min(32, room)
    while team * 2 <= min(256, room) and _splits(team * 2, outputs, inner, quads):
        team *= 2
    tiles = max(room // team, 1)
    columns = -(-outputs // (4 * (256 // team)))
    constants = (("ROWS", together), ("TEAM", team), ("TILES", tiles))
    return Plan("few_rows", constants, {"column_groups": columns}, columns * -(-rows // together))


def _splits(team: int, outputs: int, inner: int, quads: int) -> bool:
    """Whether teams of so many lanes all have work, and the GPU without them too little."""
    few = -(-outputs // (4 * (512 // team))) < _BUSY
    return few and team * quads * 4 <= inner


def _many(batches: int, rows: int, outputs: int) -> Plan:
    tile_rows, side = 16, 1  # by 256 outputs
    if rows > 32:
        tile_rows, side = 64, 1  # by 64
    if rows > 64 and batches * -(-rows // 128) * -(-outputs // 128) >= _BUSY // 4:
        tile_rows, side = 128, 2  # by 128
    tile_outputs = 256 // (tile_rows // (4 * side)) * 4 * side
    columns = -(-outputs // tile_outputs)
    tiles = columns * -(-rows // tile_rows)
    constants = (("TILE_ROWS", tile_rows), ("SIDE", side))
    sizes = {"column_groups": columns, "tiles": tiles, "batches": batches}
    return Plan("many_rows", constants, sizes, tiles * batches)


# The shaders of products.

_SCALES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class RightRoles(Roles):
    """The roles of products' parts that the right factor fills.

    right:     "codes", of a format and with what stands beside them, or "floats"
    decode:    how elements are decoded, matmul/decode/{decode}
    chunk:     how few rows of the left factor read codes
    fast_step: how steps are made of stored scales, matmul/step/{fast_step}
    """

    right: str
    device: DeviceArithmetic = EXACT
    format: FormatRoles | None = None
    stored: StoredParams | None = None
    decode: str | None = None
    chunk: str | None = None
    fast_step: str | None = None


@dataclass(frozen=True)
class FewRows(ShaderKernel, part="kernels/matmul_few_rows"):
    """Products with few rows. bias: "added" or "none" """

    right: RightRoles
    bias: str


@dataclass(frozen=True)
class ManyRows(FewRows, part="kernels/matmul_many_rows"):
    """Products with many rows."""


@dataclass(frozen=True)
class TableRows(ShaderKernel, part="kernels/table_rows"):
    """Rows of a table."""

    right: RightRoles


KERNELS = {"few_rows": FewRows, "many_rows": ManyRows}


def storage(dtype: torch.dtype) -> int:
    """How numbers of a dtype are stored, as bits/storage has it."""
    return STORAGE[_SCALES[dtype]]


def product_shader(
    plan: Plan,
    right: RightRoles,
    constants: dict[str, Constant],
    left: torch.dtype,
    bias: torch.dtype | None,
    result: torch.dtype,
) -> Shader:
    """That of a plan, for a right factor, and these dtypes."""
    stored: dict[str, Constant] = {
        "LEFT_STORAGE": storage(left),
        "BIAS_STORAGE": 0 if bias is None else storage(bias),
        "RESULT_STORAGE": storage(result),
    }
    kernel = KERNELS[plan.kernel](right, "none" if bias is None else "added")
    return Shader(kernel, tuple((constants | stored | dict(plan.constants)).items()))


@cache
def cast_shader(dtype: torch.dtype) -> Shader:
    """float32 to a type of 16 bits."""
    return Shader("kernels/copies/cast", (("RESULT_STORAGE", storage(dtype)),))


def rows_shader(
    right: RightRoles,
    constants: dict[str, Constant],
    indices: torch.dtype,
    result: torch.dtype,
) -> Shader:
    """Rows of a table, which is a right factor, and these dtypes."""
    stored = {"INDEX_WORDS": indices.itemsize // 4, "RESULT_STORAGE": storage(result)}
    return Shader(TableRows(right), tuple((constants | stored).items()))


# The two factors of a product, as its kernels read them.

_FLUSHED = -126  # devices may take what is below 2^-126 for 0
_MARGIN = 21  # a sum may be off by 2^-18 of its terms' magnitudes (64 ulps); the rest is reserve


class MatrixPlaces(NamedTuple):
    """Where numbers are in memory, counted in numbers: the first, and from one to the next."""

    start: int
    batch: int
    row: int
    column: int

    def by_name(self, factor: str) -> dict[str, int]:
        """By the names that shaders have for a factor's."""
        return {f"{factor}_{name}": value for name, value in self._asdict().items()}


class LeftOperand(NamedTuple):
    """Floats [batches, rows, inner], one after another where nothing is said of their places."""

    memory: Memory
    dtype: torch.dtype
    rows: int
    inner: int
    batches: int = 1
    places: MatrixPlaces | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Their places by the names that shaders have for them."""
        places = self.places or MatrixPlaces(0, self.rows * self.inner, self.inner, 1)
        return places.by_name("left")


class Limits(NamedTuple):
    """What the quick way takes; larger numbers go the exact one. All are powers of two.

    value: of a magnitude of an element before it is multiplied by its step
    step, left_factor, weight: of magnitudes of steps, of the left factor's numbers, and of the
        right one's
    """

    value: float
    step: float
    left_factor: float = 2.0**20
    weight: float = 2.0**30

    def least(self, inner: int) -> int:
        """From here on a sum of `inner` products says by itself that nothing of it was lost: its
        bits.

        A number that is flushed to 0 takes with it at most 2^-126 times what multiplies it.
        """
        worst = max(self.weight, self.left_factor * self.value, self.left_factor * self.step, 1.0)
        return bits_of(ldexp(worst, _FLUSHED + _MARGIN + (max(inner, 1) - 1).bit_length()))


class Right(NamedTuple):
    """A weight [outputs, inner] as kernels read it.

    codes:     its memory, of which rows of `row_bytes` bytes are bound by that name; the others
               are in `buffers`
    chunk:     how few rows of the left factor read it; "" if they cannot
    chunk_quads: fours of its columns that a lane then reads at once
    """

    outputs: int
    roles: RightRoles
    constants: dict[str, Constant]
    buffers: dict[str, Memory | Window]
    sizes: dict[str, int]
    limits: Limits
    codes: Memory | None = None
    row_bytes: int = 0
    chunk: str = ""
    chunk_quads: int = 0

    def bound(self, first: int, count: int) -> dict[str, Memory | Window]:
        """What a launch binds that sees `count` outputs from the first on."""
        if self.codes is None:
            return dict(self.buffers)
        part = window(self.codes, first * self.row_bytes, count * self.row_bytes)
        return self.buffers | {"codes": part}


def window(memory: Memory, start: int, nbytes: int) -> Window:
    """A part of memory, in whole fours of words."""
    return Window(memory, start, max(-(-nbytes // 16) * 16, 16))


def floats(memory: Memory, dtype: torch.dtype, outputs: int, places: MatrixPlaces) -> Right:
    """Floats as the right factor; a row of theirs belongs to an output."""
    limits = Limits(2.0**30, 1.0, left_factor=2.0**30)
    return Right(
        outputs,
        RightRoles("floats"),
        {
            "RIGHT_STORAGE": storage(dtype),
            "OUTPUTS_ADJOIN": places.row == 1 and places.column != 1,
            **constants_of(limits),
        },
        {"w": memory},
        places.by_name("right"),
        limits,
    )


def constants_of(limits: Limits) -> dict[str, Constant]:
    """Limits as shaders compare with them: the bits of magnitudes."""
    return {"LEFT_LIMIT": bits_of(limits.left_factor), "VALUE_LIMIT": bits_of(limits.weight),
            "STEP_LIMIT": bits_of(limits.step)}  # fmt: skip


# A product of two factors, in as many launches as what kernels can see at once asks for.

_WINDOW = 256  # bytes: windows begin at multiples


class Bias(NamedTuple):
    """Numbers [outputs] that are added to the products."""

    memory: Memory
    dtype: torch.dtype


class _Piece(NamedTuple):
    """Rows of the left factor and outputs of the right one that one launch multiplies."""

    row: int
    rows: int
    output: int
    outputs: int


def product(
    left: LeftOperand, right: Right, bias: Bias | None, dtype: torch.dtype, *, alone: bool = False
) -> Memory:
    """left [batches, rows, k] times right [outputs, k], plus the bias -> [batches, rows, outputs].

    No size but k may be 0. Sums are of float32, and rounded to `dtype` once.

    alone: a workgroup has one row, so that its results do not depend on the others: neither the
        order of sums nor which of them are in doubt. Only where there is one batch
    """
    assert not alone or left.batches == 1
    # two halves share a word: an odd number of outputs goes through float32
    whole = dtype == torch.float32 or right.outputs % 2 == 0
    kind = dtype if whole else torch.float32
    count = left.batches * left.rows * right.outputs
    result = allocate(count * kind.itemsize)
    for piece in _pieces(left, right, kind):
        _launch(left, right, bias, result, kind, piece, alone=alone)
    return result if whole else cast(result, count, dtype)


def _launch(
    left: LeftOperand,
    right: Right,
    bias: Bias | None,
    result: Memory,
    kind: torch.dtype,
    piece: _Piece,
    *,
    alone: bool,
) -> None:
    x = _part(left, piece)
    wide = right.outputs * kind.itemsize
    to = window(result, piece.row * wide, left.batches * piece.rows * wide)
    if alone and not right.chunk:  # rows become batches of one row each
        left, piece = left._replace(batches=piece.rows, rows=1), piece._replace(rows=1)
    p = plan(
        left.batches, piece.rows, piece.outputs, left.inner, right.chunk, right.chunk_quads, alone
    )
    bias_dtype = None if bias is None else bias.dtype
    shader = product_shader(p, right.roles, right.constants, left.dtype, bias_dtype, kind)
    buffers = right.bound(piece.output, piece.outputs) | {"x": x, "y": to}
    if p.kernel == "few_rows" and right.chunk == "words":
        buffers["words"] = buffers["codes"]
    if bias is not None:
        buffers["bias"] = bias.memory
    launch(shader, buffers, _sizes(left, right, piece) | p.sizes, p.groups, bake=False)


def _sizes(left: LeftOperand, right: Right, piece: _Piece) -> dict[str, int]:
    return {
        "rows": piece.rows,
        "outputs": piece.outputs,
        "inner": left.inner,
        "columns": right.outputs,
        "first": piece.output,
        "least": right.limits.least(left.inner),
        **left.sizes,
        **right.sizes,
    }


def _pieces(left: LeftOperand, right: Right, kind: torch.dtype) -> Iterator[_Piece]:
    """What no launch can see at once goes in several."""
    outputs = most(right.outputs, right.row_bytes)
    in_order = left.batches == 1 and left.places is None
    both = (left.inner * left.dtype.itemsize, right.outputs * kind.itemsize)
    rows = most(left.rows, *both) if in_order else left.rows
    for m in range(0, left.rows, rows):
        for n in range(0, right.outputs, outputs):
            yield _Piece(m, min(rows, left.rows - m), n, min(outputs, right.outputs - n))


def most(rows: int, *row_bytes: int) -> int:
    """How many of so many rows a kernel sees at once, where the next ones begin at a window.

    row_bytes: those of a row, of each tensor that is seen in part
    """
    limit, largest = gpu().binding_limit, max(row_bytes)
    if rows * largest <= limit:
        return rows
    step = _WINDOW // gcd(_WINDOW, *row_bytes)
    return max(limit // largest // step, 1) * step


def _part(operand: LeftOperand, piece: _Piece) -> Window:
    if piece.rows == operand.rows:
        return window(operand.memory, 0, operand.memory.nbytes)
    row = operand.inner * operand.dtype.itemsize
    return window(operand.memory, piece.row * row, piece.rows * row)


def cast(values: Memory, count: int, dtype: torch.dtype) -> Memory:
    """float32 [count] -> the same rounded to dtype, of 16 bits."""
    result = allocate(count * dtype.itemsize)
    words = -(-count // 2)
    launch(
        cast_shader(dtype),
        {"source": values, "result": result},
        {"count": count},
        -(-words // 256),
    )
    return result
