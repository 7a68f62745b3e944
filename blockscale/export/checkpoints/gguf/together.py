# SPDX-License-Identifier: BSD-3-Clause
"""A quantized tensor -> the bytes of its blocks: the inverse of what reading does."""

import torch
from torch import Tensor

from blockscale.export.checkpoints.gguf import records
from blockscale.export.checkpoints.gguf.blocks import TYPES, BlockType
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

_ELEMENTS = 1 << 22  # that are put together at a time


def blocks_of(q: QTensor, of: BlockType) -> Tensor:
    """Blocks uint8 [n, size] of a tensor whose rows are whole blocks of this type's format."""
    count = q.packed.numel() * q.packed.itemsize * 8 // q.format.bits // of.elements
    blocks = torch.empty((count, of.size), dtype=torch.uint8)
    parts = {k: part.reshape(count, -1) for k, part in q.qparams._asdict().items() if _own(k, part)}
    packed = q.packed.reshape(count, -1)
    name = next(name for name, each in TYPES.items() if each is of)
    if records.record(name) is not None:
        whole = {k: part.contiguous() for k, part in parts.items()}
        whole |= {"codes": packed.contiguous()} | records.negate(name, whole)
        records.together_from(name, whole, 0, blocks)
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
