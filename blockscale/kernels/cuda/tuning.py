"""Launch settings of the primitives: elements of a program and warps, measured on an H200.

`python -m benchmarks.gpu_primitives --sweep` measured them, on [16384, 16384] in float32 and
bfloat16: what mattered was how many elements a thread holds, not the format, dtype or direction.
"""

from dataclasses import dataclass

from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.view import Layout


@dataclass(frozen=True)
class Setting:
    """elements: of a tile, at least one unit; warps: of 32 threads, for each program.

    unit: elements of a part of a block, at most about so many
    """

    elements: int
    warps: int
    unit: int = 1024


INTERPRETED = Setting(16384, 4)  # it pays for each program, not for its size
ALONG = Setting(2048, 2)  # units along the last dimension: 32 elements a thread
PACKED = Setting(4096, 4)  # the same, where codes of less than a byte are written
ACROSS = Setting(4096, 2)  # several rows in a unit: each thread holds whole columns
PACKED_ACROSS = Setting(8192, 4)
MERGED = Setting(8192, 4, unit=8192)  # one atomic operation a unit
# elements of one block up to: warps, where it is part of a row, or has several
LARGE = ((2048, 2), (4096, 8), (16384, 16), (32768, 32))
LARGE_ACROSS = ((4096, 4), (8192, 4), (16384, 8), (32768, 16))


def setting(at: Layout, *, given: bool, merged: bool, packed: bool = False) -> Setting:
    """What to launch with. given: units may be parts of blocks; merged: by atomic operations;
    packed: codes of less than a byte are written."""
    if interpreting():
        return INTERPRETED
    if merged and (given or at.bm * at.bk <= MERGED.elements):
        return MERGED
    block, across = at.bm * at.bk, at.bm > 1
    if not given and block > ALONG.elements:
        warps = (each for size, each in (LARGE_ACROSS if across else LARGE) if block <= size)
        return Setting(block, next(warps, 32))
    if packed:
        return PACKED_ACROSS if across else PACKED
    return ACROSS if across else ALONG
