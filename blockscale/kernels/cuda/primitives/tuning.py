"""Launch settings of the primitives: elements of a program and warps, measured on an H200.

`python -m benchmarks.gpu_primitives --sweep` measured them, on [16384, 16384] in float32 and
bfloat16: what mattered was how many elements a thread holds, not the format, dtype or direction.
"""

from dataclasses import dataclass

from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.primitives.view import Layout


@dataclass(frozen=True)
class Setting:
    """elements: of a tile, at least one unit; warps: of 32 threads, for each program.

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
MERGED = Setting(8192, 4, unit=8192)  # one atomic operation a unit
# elements of one block up to: warps; and if it is lean warps and registers, of which 16 warps of 32
# leave room for three other programs: where the block is part of a row, or has several
LARGE = ((2048, 2, 2, 0), (4096, 8, 8, 32), (16384, 16, 16, 32), (32768, 32, 32, 32))
LARGE_ACROSS = ((4096, 4, 4, 0), (8192, 4, 4, 0), (16384, 8, 16, 64), (32768, 16, 16, 0))
# warps and registers for blocks of 4097 to 16384 elements where the compiler would take so many
# registers that one program has a multiprocessor to itself
HEAVY = {"signs": (16, 64), "means": (8, 128), "powers": (16, 64), "tile": (16, 64)}


def setting(
    at: Layout, *, given: bool, merged: bool, packed: bool = False, lean: bool = False,
    heavy: str = "",
) -> Setting:  # fmt: skip
    """What to launch with. given: units may be parts of blocks; merged: by atomic operations;
    packed: codes of less than a byte are written; lean: numbers of 16 bits become codes; heavy:
    one of HEAVY, or ""."""
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
        row = next((each[1:] for each in table if block <= each[0]), (32, 32, 0))
        return Setting(block, row[1], registers=row[2]) if lean else Setting(block, row[0])
    if across and lean:
        return PACKED_LEAN_ACROSS if packed else LEAN_ACROSS
    if packed:
        return PACKED_ACROSS if across else PACKED_LEAN if lean else PACKED
    return ACROSS if across else ALONG
