"""A plan of memory: arrays whose lifetimes do not meet share their bytes.

Elements of one width lie in one array of C, so that no object is read as another type, which C99
does not define.
"""

from collections.abc import Sequence

from blockscale.export.to_c.values import Array

WIDTHS = (8, 4, 2, 1)  # bytes of an element


def plan(arrays: Sequence[Array]) -> dict[int, int]:
    """Set `offset` of each array, in elements -> {width: how many elements there are}.

    The largest first, each at the lowest place that is free during its life (greedy by size:
    Pisarchyk and Lee 2020, arXiv:2001.03288, sec. 4.2).
    """
    sizes: dict[int, int] = {}
    for width in WIDTHS:
        placed: list[Array] = []
        members = [each for each in arrays if each.dtype.itemsize == width]
        for each in sorted(members, key=lambda a: (-a.size, a.first, a.number)):
            each.offset = _lowest(each, placed)
            placed.append(each)
        if placed:
            sizes[width] = max(each.offset + each.size for each in placed)
    return sizes


def meet(a: Array, b: Array) -> bool:
    """Whether both are alive during some step."""
    return a.first <= b.last and b.first <= a.last


def _lowest(array: Array, placed: list[Array]) -> int:
    """The lowest offset without a neighbour that lives at the same time."""
    offset = 0
    for other in sorted((each for each in placed if meet(each, array)), key=lambda a: a.offset):
        if offset + array.size <= other.offset:
            break
        offset = max(offset, other.offset + other.size)
    return offset
