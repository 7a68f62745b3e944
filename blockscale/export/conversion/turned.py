"""NVFP4's scale of scales: multiplied by, or stored as its reciprocal and divided by."""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.scales.two_level import TwoLevel
from blockscale.export.conversion.meaning import meaning
from blockscale.export.to_compressed_tensors.tensors import reciprocal
from blockscale.ops.tensor import QTensor


def other_direction(found: Format, wanted: Format) -> bool:
    """Whether they differ only in how a scale of scales is stored, as it is or its reciprocal."""
    one, other = found.scale, wanted.scale
    if not isinstance(one, TwoLevel) or not isinstance(other, TwoLevel):
        return False
    alone = meaning(one.inner) == meaning(other.inner) and str(one.inner.block) == "tensor"
    same = meaning(found)[:2] == meaning(wanted)[:2] and one.inner.element.name == "e4m3"
    return alone and same and one.reciprocal != other.reciprocal


def turned(q: QTensor, wanted: Format) -> QTensor | None:
    """With the reciprocal of the scale of scales, or the other way round; None if none is exact."""
    outer = q.qparams.outer
    assert outer is not None and isinstance(q.format.scale, TwoLevel)
    if q.format.scale.reciprocal:
        found, exact = multiplier(q.qparams.scale, outer)
    else:
        found, exact = reciprocal(q.qparams.scale, outer)
    if not exact:
        return None
    parts = q.qparams._replace(outer=found.reshape(outer.shape))
    return QTensor(q.packed, parts, wanted, q.size)


def multiplier(codes: Tensor, outer: Tensor) -> tuple[Tensor, bool]:
    """The float32 t with fl(s * t) = fl(s / outer) for every scale s, and whether there is one."""
    values = torch.unique(codes.reshape(-1)).view(torch.float8_e4m3fn).to(torch.float32)
    values = values[values.isfinite()]
    wanted = values / outer.reshape(())
    nearest = (1 / outer.to(torch.float64)).reshape(()).to(torch.float32)
    for step in sorted(range(-8, 9), key=abs):
        tried = (nearest.view(torch.int32) + step).view(torch.float32)
        if torch.equal(values * tried, wanted):
            return tried, True
    return nearest, False
