# SPDX-License-Identifier: BSD-3-Clause
"""The block types of GGUF: how bytes become the parts of one of our formats, and back.

Layouts: ggml's ggml-common.h (commit d99724f2) and gguf-py's quants.py (0.19.0). Codes, scales and
offsets are taken as they are stored, none is computed anew; so what is read and written again has
the same bytes. Tensors of parts have a row for each block: codes [n, elements], scales [n, scales].
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.export.checkpoints.gguf.block_types import K_TYPES, SIMPLE_TYPES
from blockscale.export.checkpoints.gguf.block_types import BlockType as BlockType
from blockscale.export.checkpoints.gguf.block_types import Parts as Parts
from blockscale.kernels import cpu
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

TYPES = SIMPLE_TYPES | K_TYPES

# Tensors that are not quantized: {name: (number, dtype)}
PLAIN = {
    "F32": (0, torch.float32), "F16": (1, torch.float16), "I8": (24, torch.int8),
    "I16": (25, torch.int16), "I32": (26, torch.int32), "I64": (27, torch.int64),
    "F64": (28, torch.float64), "BF16": (30, torch.bfloat16),
}  # fmt: skip

# {number: (name, elements, bytes)}: codes of vectors in grids of ggml's own, which are no elements
# of any format; their bytes can be copied.
GRIDS = {
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    29: ("IQ1_M", 256, 56),
}  # fmt: skip

# {general.file_type: the type of most tensors} (llama.cpp, llama_ftype); mixes have others, too
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q3_K", 13: "Q3_K", 14: "Q4_K", 15: "Q4_K", 16: "Q5_K", 17: "Q5_K", 18: "Q6_K",
    25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

# Layers beside whose NVFP4 weight llama.cpp looks for a scale of all scales (llama-model.cpp)
_SCALED = re.compile(
    r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down)(_shexp|_exps)?)\.weight"
)


def scale_of(name: str) -> str | None:
    """The name of the scale of all scales of an NVFP4 tensor; None where there is none."""
    return f"{name.removesuffix('weight')}scale" if _SCALED.fullmatch(name) else None


# GGUF's block types for the native kernel that takes blocks apart and puts them together.
#
# The same as `apart` and `together` of a BlockType, as places of fields instead of functions: tests
# compare both. TQ1_0, whose digits are no fields, has only the functions.


Piece = tuple[int, int, int, int, int, int, bool]  # of src/records.h, in its order
_HIGHEST = -(2**15)  # the sign of an fp16 number


class BlockField(NamedTuple):
    """A part of a block: `entries` of `bits` each, `add` added to what is stored.

    packed: as codes are; negated: fp16 numbers with the other sign
    """

    name: str
    entries: int
    bits: int
    pieces: Sequence[Piece]
    add: int = 0
    packed: bool = False
    negated: bool = False


def _raw(start: int, count: int) -> Iterator[Piece]:
    """Bytes as they are."""
    yield start, count, 0, 8, 0, 0, False


def _runs(start: int, count: int, width: int, run: int = 0, left_shift: int = 0) -> Iterator[Piece]:
    """As block_types.split_runs: in each run of bytes the lowest fields of all come first."""
    run = run or count
    target = 0
    for first in range(start, start + count, run):
        for right in range(0, 8, width):
            yield first, run, right, width, left_shift, target, False
            target += run


def _stream(start: int, count: int, width: int, number: int = 0) -> Iterator[Piece]:
    """As fields.stream: the fields of a byte after one another."""
    yield start, count, 0, width, number, 0, True


def _bits(
    start: int, count: int, width: int, target: int, right: int = 0, left_shift: int = 0
) -> Piece:
    """One field of each byte."""
    return start, count, right, width, left_shift, target, False


def _number(name: str, start: int, count: int = 2, negated: bool = False) -> BlockField:
    """Numbers that are whole bytes."""
    return BlockField(name, count, 8, tuple(_raw(start, count)), negated=negated)


def _codes(entries: int, bits: int, *pieces: Iterator[Piece], middle: int = 0) -> BlockField:
    every = tuple(piece for each in pieces for piece in each)
    return BlockField("codes", entries, bits, every, -middle % 2**bits, True)


def _whole_codes(start: int, count: int) -> BlockField:
    """Codes that lie as ours do."""
    return _number("codes", start, count)


def _six_bits(name: str, low: int, high: int) -> BlockField:
    """Scales (low 4, high 0) or minimums (low 8, high 4) of Q4_K and Q5_K, 12 bytes from 4 on."""
    first = _bits(low, 4, 6, 0)
    return BlockField(
        name, 8, 6, (first, _bits(12, 4, 4, 4, right=high), _bits(low, 4, 2, 4, 6, 4))
    )


_BESIDE = (
    _number("outer", 0), _number("offset_outer", 2, negated=True), _six_bits("scale", 4, 0),
    _six_bits("offset", 8, 4),
)  # fmt: skip
_NEAR = _number("scale", 0)  # fp16
PARTS: Mapping[str, tuple[BlockField, ...]] = {
    "Q8_0": (_NEAR, _whole_codes(2, 32)),
    "Q4_0": (_NEAR, _codes(32, 4, _runs(2, 16, 4), middle=8)),
    "Q4_1": (_NEAR, _number("offset", 2), _codes(32, 4, _runs(4, 16, 4))),
    "Q5_0": (_NEAR, _codes(32, 5, _runs(6, 16, 4), _stream(2, 4, 1, 4), middle=16)),
    "Q5_1": (_NEAR, _number("offset", 2), _codes(32, 5, _runs(8, 16, 4), _stream(4, 4, 1, 4))),
    "IQ4_NL": (_NEAR, _codes(32, 4, _runs(2, 16, 4))),
    "TQ2_0": (_number("scale", 64), _codes(256, 2, _runs(0, 64, 2, 32), middle=1)),
    "MXFP4": (_number("scale", 0, 1), _codes(32, 4, _runs(1, 16, 4))),
    "NVFP4": (_number("scale", 0, 4), _codes(64, 4, _runs(4, 32, 4, 8))),
    "Q1_0": (_NEAR, _whole_codes(2, 16)),
    "Q2_0": (_NEAR, _whole_codes(2, 16)),
    "Q2_K": (
        BlockField("scale", 16, 4, (_bits(0, 16, 4, 0),)),
        BlockField("offset", 16, 4, (_bits(0, 16, 4, 0, 4),)),
        _number("outer", 80), _number("offset_outer", 82, negated=True),
        _codes(256, 2, _runs(16, 64, 2, 32)),
    ),
    "Q3_K": (
        BlockField("scale", 16, 6, (*_runs(96, 8, 4), *_runs(104, 4, 2, left_shift=4)), 32),
        _number("outer", 108),
        _codes(256, 3, _runs(32, 64, 2, 32), _runs(0, 32, 1, left_shift=2), middle=4),
    ),
    "Q4_K": (*_BESIDE, _codes(256, 4, _runs(16, 128, 4, 32))),
    "Q5_K": (*_BESIDE, _codes(256, 5, _runs(48, 128, 4, 32), _runs(16, 32, 1, left_shift=4))),
    "Q6_K": (
        _number("scale", 192, 16), _number("outer", 208),
        _codes(256, 6, _runs(0, 128, 4, 64), _runs(128, 64, 2, 32, 4), middle=32),
    ),
    "IQ4_XS": (
        BlockField("scale", 8, 6, (*_stream(4, 4, 4), *_stream(2, 2, 2, 4)), 32),
        _number("outer", 0),
        _codes(256, 4, _runs(8, 128, 4, 16)),
    ),
}  # fmt: skip


@cache
def record(name: str) -> Any | None:
    """The kernel's own Record of a type; None where there is no kernel, or none for this type."""
    native = cpu.load()
    if isinstance(native, str) or name not in PARTS:
        return None
    parts = [(p.entries, p.bits, p.add, p.packed, list(p.pieces)) for p in PARTS[name]]
    return native.Record(TYPES[name].size, parts)


def apart_into(name: str, blocks: Tensor, start: int, whole: Mapping[str, Tensor]) -> None:
    """Take blocks uint8 [n, size] apart, into the places from block `start` on of whole parts."""
    parts, n = PARTS[name], blocks.shape[0]
    places = [_place(whole[part.name], part, start, n) for part in parts]
    record(name).apart(blocks.data_ptr(), n, places, torch.get_num_threads())  # type: ignore[union-attr]


def together_from(name: str, whole: Mapping[str, Tensor], start: int, blocks: Tensor) -> None:
    """Put blocks uint8 [n, size] together from the parts of block `start` on."""
    parts, n = PARTS[name], blocks.shape[0]
    places = [_place(whole[part.name], part, start, n) for part in parts]
    record(name).together(places, n, blocks.data_ptr(), torch.get_num_threads())  # type: ignore[union-attr]


def negate(name: str, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts that ggml subtracts, with the other sign; NaN, too, keeps all other bits."""
    names = [part.name for part in PARTS[name] if part.negated]
    return {n: (whole[n].view(torch.int16) ^ _HIGHEST).view(torch.float16) for n in names}


def _place(whole: Tensor, part: BlockField, start: int, n: int) -> int:
    each = part.entries * part.bits // 8 if part.packed else part.entries
    assert whole.is_contiguous() and whole.nbytes >= (start + n) * each, (part.name, whole.shape)
    return whole.data_ptr() + start * each


# A quantized tensor -> the bytes of its blocks: the inverse of what reading does.


_ELEMENTS = 1 << 22  # that are put together at a time


def blocks_of(q: QTensor, of: BlockType) -> Tensor:
    """Blocks uint8 [n, size] of a tensor whose rows are whole blocks of this type's format."""
    count = q.packed.numel() * q.packed.itemsize * 8 // q.format.bits // of.elements
    blocks = torch.empty((count, of.size), dtype=torch.uint8)
    parts = {k: part.reshape(count, -1) for k, part in q.qparams._asdict().items() if _own(k, part)}
    packed = q.packed.reshape(count, -1)
    name = next(name for name, each in TYPES.items() if each is of)
    if record(name) is not None:
        whole = {k: part.contiguous() for k, part in parts.items()}
        whole |= {"codes": packed.contiguous()} | negate(name, whole)
        together_from(name, whole, 0, blocks)
        return blocks
    step = max(1, _ELEMENTS // of.elements)
    for start in range(0, count, step):
        stop = min(start + step, count)
        some = {k: part[start:stop] for k, part in parts.items()}
        codes = primitives.unpack(packed[start:stop].contiguous(), of.format, of.elements)
        blocks[start:stop] = of.together({"codes": codes} | some)
    return blocks


def _own(name: str, part: Tensor | None) -> bool:
    """Whether each block has numbers of its own; NVFP4's one scale of all scales is none."""
    return part is not None and not (name == "outer" and part.dtype == torch.float32)
