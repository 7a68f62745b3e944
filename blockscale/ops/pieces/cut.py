# SPDX-License-Identifier: BSD-3-Clause
"""Parts of a quantized tensor along its first dimension, cut from codes and scales as they are."""

from typing import Any

from blockscale.core.block import WHOLE, Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand, operand
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel


def rows(whole: Operand, start: int, stop: int) -> Operand | None:
    """Rows start to stop (not included) of a quantized tensor [n, ...]: views, nothing is copied.

    None where blocks do not end there, or are not made of whole rows.
    """
    fmt, count = whole.format, whole.shape[0]
    if _joined(fmt) or not 0 <= start <= stop <= count:
        return None
    parts: dict[str, Any] = {}
    for name, part in whole.qparams._asdict().items():
        height = _height(name, fmt, len(whole.shape))
        if part is None or height == WHOLE:
            parts[name] = part
        elif start % height or (stop % height and stop != count):
            return None
        else:
            parts[name] = part[start // height : -(-stop // height)]
    return operand(whole.codes[start:stop], QParams(**parts), fmt, whole.size)


def stacked(whole: Operand, count: int) -> Operand | None:
    """A quantized tensor [count * n, k] as a stack [count, n, k]: views, nothing is copied.

    None where its blocks do not end with the matrices, or mean something else in a stack.
    """
    fmt, (n, _) = whole.format, whole.shape
    blocks = _blocks(fmt)
    if n % count or _joined(fmt) or not all(map(_of_last, blocks)):
        return None
    parts: dict[str, Any] = {}
    for name, part in whole.qparams._asdict().items():
        height = 1 if part is None else _height(name, fmt, 2)
        if height == WHOLE or n // count % height:
            return None
        parts[name] = None if part is None else _apart(part, count)
    return operand(_apart(whole.codes, count), QParams(**parts), fmt, whole.size)


def _apart(part: Any, count: int) -> Any:
    return part.view(count, part.shape[0] // count, *part.shape[1:])


def _blocks(fmt: Format) -> list[Block]:
    """The blocks of a format's scale, and of what its scale and its offset have besides."""
    inner = [fmt.scale.inner.block] if isinstance(fmt.scale, TwoLevel) else []
    offset = fmt.offset
    inner += [offset.block] if offset is not None and offset.block is not None else []
    return [fmt.block, *inner]


def _joined(fmt: Format) -> bool:
    """Whether rows cannot be told apart: flat blocks, a learned table, an offset's own scales."""
    quantized = fmt.offset is not None and fmt.offset.inner is not None
    return quantized or fmt.element.learned or any(block.flat for block in _blocks(fmt))


def _height(name: str, fmt: Format, rank: int) -> int:
    """How many rows share a number of the part `name` of a tensor of this rank; WHOLE for all."""
    if name == "offset" and fmt.offset is not None and fmt.offset.block is not None:
        return fmt.offset.block.sizes_for(rank)[0]
    height = fmt.block.sizes_for(rank)[0]
    if name in ("outer", "scale_offset") and isinstance(fmt.scale, TwoLevel):
        return height * fmt.scale.inner.block.sizes_for(rank)[0]  # of scales; WHOLE is 0
    return height


def _of_last(block: Block) -> bool:
    """Whether a block means the same in the last dimensions of any tensor."""
    return block.rest == 1 and all(dim < 0 for dim, _ in block.sizes)
