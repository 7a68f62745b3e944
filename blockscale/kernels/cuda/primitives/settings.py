# SPDX-License-Identifier: BSD-3-Clause
"""Launch settings of the primitives: elements and warps of a program, measured on an H200.

`python -m benchmarks.gpu_primitives --sweep` measured them, on [16384, 16384] in float32 and
bfloat16: what mattered was how many elements a thread holds, not the format, dtype or direction.
"""

from dataclasses import dataclass
from typing import NamedTuple

from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.primitives.tiling import Blocks


@dataclass(frozen=True)
class Setting:
    """How a kernel is launched.

    elements: of a tile, which has one unit at least
    warps: of 32 threads, for each program
    unit: elements of a part of a block, at most about so many
    registers: of a thread at most, or 0 for as many as the compiler takes
    """

    elements: int
    warps: int
    unit: int = 1024
    registers: int = 0


INTERPRETED = Setting(16384, 4)  # it pays for each program, not for its size
ALONG = Setting(2048, 2)  # units along the last dimension: 32 elements a thread
PACKED = Setting(4096, 4)  # the same, where codes of less than a byte are written
PACKED_LEAN = Setting(4096, 4, registers=64)
ACROSS = Setting(4096, 2)  # several rows in a unit: each thread holds whole columns
PACKED_ACROSS = Setting(8192, 4)
LEAN_ACROSS = Setting(2048, 1, registers=128)  # a warp has all rows: nothing waits for another
PACKED_LEAN_ACROSS = Setting(2048, 1)
ODD_BOXES = Setting(2048, 2)  # rows of odd length, of which no two neighbours move together
MERGED = Setting(8192, 4, unit=8192)  # one atomic operation a unit


class Large(NamedTuple):
    """The setting of a program that takes one block of up to `elements` elements.

    lean_warps, lean_registers: where numbers of 16 bits become codes. 16 warps of 32 registers a
        thread leave room for three other programs on a multiprocessor.
    """

    elements: int
    warps: int
    lean_warps: int
    lean_registers: int


LARGE = (  # blocks that are a part of a row
    Large(2048, 2, 2, 0), Large(4096, 8, 8, 32), Large(16384, 16, 16, 32), Large(32768, 32, 32, 32),
)  # fmt: skip
LARGE_ACROSS = (  # blocks of several rows
    Large(4096, 4, 4, 0), Large(8192, 4, 4, 0), Large(16384, 8, 16, 64), Large(32768, 16, 16, 0),
)  # fmt: skip
LARGEST = Large(0, 32, 32, 0)  # for blocks that are larger than all of them
# warps and registers for blocks of 4097 to 16384 elements where the compiler would take so many
# registers that one program has a multiprocessor to itself
HEAVY = {"signs": (16, 64), "means": (8, 128), "powers": (16, 64), "tall": (16, 64)}


def setting(
    at: Blocks, *, given: bool, merged: bool, packed: bool = False, lean: bool = False,
    heavy: str = "",
) -> Setting:  # fmt: skip
    """What to launch with.

    given: scales are given, so that units may be parts of blocks
    merged: what is found in units is merged by atomic operations
    packed: codes of less than a byte are written
    lean: numbers of 16 bits become codes
    heavy: one of HEAVY, or ""
    """
    if interpreting():
        return INTERPRETED
    if merged and (given or at.bm * at.bk <= MERGED.elements):
        return MERGED
    block, across = at.bm * at.bk, at.bm > 1
    if not given and block > ALONG.elements:
        if heavy and 4096 < block <= 16384:
            warps, registers = HEAVY[heavy]
            return Setting(block, warps, registers=registers)
        table = LARGE_ACROSS if across else LARGE
        row = next((each for each in table if block <= each.elements), LARGEST)
        if lean:
            return Setting(block, row.lean_warps, registers=row.lean_registers)
        return Setting(block, row.warps)
    if at.before is not None and at.k % 2:
        return ODD_BOXES
    if across and lean:
        return PACKED_LEAN_ACROSS if packed else LEAN_ACROSS
    if packed:
        return PACKED_ACROSS if across else PACKED_LEAN if lean else PACKED
    return ACROSS if across else ALONG
