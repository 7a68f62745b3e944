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


def selected(whole: Operand, index: int) -> Operand | None:
    """Element `index` of the first dimension of [n, ..., k], of three dimensions or more: views.

    None where its blocks mean something else in a tensor of one dimension less.
    """
    fmt = whole.format
    if len(whole.shape) < 3 or _joined(fmt) or not all(map(_of_last, _blocks(fmt))):
        return None
    one = rows(whole, index, index + 1)
    if one is None:
        return None
    parts: dict[str, Any] = {
        n: None if part is None else part[0] for n, part in one.qparams._asdict().items()
    }
    return operand(one.codes[0], QParams(**parts), fmt, whole.size)


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
    return block.name == "tensor" or (block.rest == 1 and all(dim < 0 for dim, _ in block.sizes))
