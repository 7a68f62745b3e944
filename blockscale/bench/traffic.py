# SPDX-License-Identifier: BSD-3-Clause
"""How many bytes an operation must move at least."""

from math import prod

import torch

from blockscale.core.format import Format
from blockscale.core.scales import TwoLevel

Shape = tuple[int, ...]


def stored_bytes(fmt: Format, shape: Shape) -> int:
    """Codes and what stands beside them (Format.parts) of a tensor of `shape`, as stored."""
    return fmt.nbytes(shape)


def reads(fmt: Format, shape: Shape, dtype: torch.dtype, cache: int) -> int:
    """How often x must be read to choose its scale and use it: twice where a scale spans more than
    the last-level cache of `cache` bytes, because nothing can be written before all of it is seen.
    """
    scales = fmt.block.scale_shape(shape)
    if isinstance(fmt.scale, TwoLevel):
        scales = fmt.scale.inner.block.scale_shape(scales)
    span = prod(shape) // max(prod(scales), 1) * dtype.itemsize
    return 2 if span > cache else 1


def moved(op: str, fmt: Format, shape: Shape, dtype: torch.dtype, times_read: int) -> int:
    """Bytes of one primitive: input and output, scales too. `dtype` is that of the float side."""
    floats, stored = prod(shape) * dtype.itemsize, stored_bytes(fmt, shape)
    if op == "quantize":
        return times_read * floats + stored
    if op == "dequantize":
        return stored + floats
    if op == "fake_quantize":
        return times_read * floats + floats
    raise ValueError(f"no primitive {op!r}")
