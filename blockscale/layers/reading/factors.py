"""The one write that codes allow: all of a weight times a power of two, where that is exact.

RWKV's models do that (`weight.div_(4)`) to some of their layers when they are put into evaluation.
"""

import math
from typing import Any

import torch
from torch import Tensor

from blockscale.core.scales.two_level import TwoLevel
from blockscale.layers.reading.source import ReadTensor


def multiplied(weight: Any, factor: Any, *, inverse: bool = False) -> Any:
    """The weight after `mul_(factor)`, or `div_` with `inverse`: its scales have changed in place.

    None, and nothing done, unless that is exact: the factor is a power of two, and each dequantized
    value of the whole weight is what it was times that.
    """
    power = _power(factor)
    if power is None or not isinstance(weight, ReadTensor) or weight.source.owner is None:
        return None
    power = -power if inverse else power
    owner = weight.source.owner
    if not hasattr(owner, "qparams"):
        return None
    new = _scaled(owner, power)
    before = {name: part.clone() for name, part in owner.named_buffers()}
    expected = owner.tensor.dequantize() * 2.0**power
    for name, part in new.items():
        _write(getattr(owner, name), part)
    if not torch.equal(owner.tensor.dequantize(), expected):
        for name, part in before.items():
            _write(getattr(owner, name), part)
        return None
    weight.source.value = None
    return weight


def _write(buffer: Tensor, value: Tensor) -> None:
    """Below autograd a write leaves no trace, and what kernels keep beside weights needs one."""
    buffer.copy_(value)
    if not buffer.is_inference():
        torch.autograd.graph.increment_version(buffer)


def _power(factor: Any) -> int | None:
    """The exponent of a positive power of two, else None."""
    if isinstance(factor, Tensor):
        if isinstance(factor, ReadTensor) or factor.numel() != 1:
            return None
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        return None
    fraction, exponent = math.frexp(factor)
    return exponent - 1 if fraction == 0.5 else None


def _scaled(owner: Any, power: int) -> dict[str, Tensor]:
    """{part: what it becomes} of the parts that say how large the values are."""
    parts = {name: part for name, part in owner.qparams._asdict().items() if part is not None}
    two_level = isinstance(owner.format.scale, TwoLevel)
    new: dict[str, Tensor] = {}
    for name in ("offset_outer", "scale_offset", *(["outer"] if two_level else ["scale"])):
        part = parts.get(name)
        if part is None:
            continue
        if part.dtype == torch.uint8:  # an e8m0's byte is its exponent
            new[name] = (part.to(torch.int32) + power).clamp(0, 254).to(torch.uint8)
        else:
            sign = -1 if name == "outer" and owner.format.scale.reciprocal else 1
            new[name] = part * 2.0 ** (sign * power)
    if "offset" in parts and parts["offset"].is_floating_point():
        new["offset"] = parts["offset"] * 2.0**power
    return new
