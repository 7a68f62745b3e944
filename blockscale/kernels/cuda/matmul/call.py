# SPDX-License-Identifier: BSD-3-Clause
"""What is asked of a product, and how a table writes the settings of a way to compute it."""

from collections.abc import Sequence
from typing import NamedTuple

from blockscale.kernels.cuda.replay.direct import power_of_2

COLUMNS = 7  # numbers of a table's entry; the last two may be left out, and are then 1


class Call(NamedTuple):
    """What the choice among the ways depends on.

    what: "weight" where codes of the weight meet values of x, "int8" or "fp8" where they meet codes
    fmt: the weight's spelling
    rows: of x, counting each of the bfloat16 numbers that its elements are split into
    n, k: outputs and inputs
    fused: whether this GPU can run the kernels in hopper/ on this weight
    """

    what: str
    fmt: str
    rows: int
    n: int
    k: int
    fused: bool = False


# What kernels are written for: rows and outputs of a tile, words or codes of a step, warps, stages
# or programs, parts of a sum, steps at a time. 0 where a way has no such number.
_NUMBERS = (
    (0, 8, 16, 32, 64, 128, 192, 256), (0, 16, 32, 64, 128, 256, 2048, 4096),
    (0, 8, 16, 32, 48, 64, 128, 256), (0, 1, 2, 4, 8, 16), range(9), range(1, 17),
    range(1, 9),
)  # fmt: skip


def columns(numbers: Sequence[int]) -> tuple[int, ...]:
    """The seven numbers of a table's entry. Raises ValueError if there are none, or too many."""
    if not COLUMNS - 2 <= len(numbers) <= COLUMNS:
        raise ValueError(
            f"a table of launch choices has an entry with the numbers {list(numbers)}, where "
            f"{COLUMNS - 2} to {COLUMNS} were expected: delete the table that "
            "BLOCKSCALE_TUNE_CACHE names"
        )
    for number, known in zip(numbers, _NUMBERS, strict=False):
        if type(number) is not int or number not in known:
            raise ValueError(
                f"a table of launch choices has an entry with the number {number!r}, where one of "
                f"{', '.join(map(str, known))} was expected: delete the table that "
                "BLOCKSCALE_TUNE_CACHE names"
            )
    return (*numbers, *(1,) * (COLUMNS - len(numbers)))


def tile_rows(rows: int, least: int) -> int:
    """The power of two that holds so many rows of x, and is `least` at least."""
    return max(least, power_of_2(rows))


def worth_measuring(rows: int, call: Call) -> bool:
    """Whether a tile of so many rows is neither much larger nor much smaller than the call's."""
    if rows == 8:
        return call.rows <= 8
    top = tile_rows(call.rows, 16)
    return top // 2 <= rows <= top or (rows >= 128 and top > 128)
