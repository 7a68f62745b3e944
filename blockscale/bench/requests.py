# SPDX-License-Identifier: BSD-3-Clause
"""What a contestant is asked for, and how many bytes an operation must move at least."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.bench.machine import last_cache
from blockscale.core.format import Format
from blockscale.core.parse import parse
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


# A primitive on a tensor, a linear layer, an encoder.


@lru_cache(maxsize=3)
def normal(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Standard normal numbers, the same in every run."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


@dataclass(frozen=True)
class Primitive:
    """`op` on a tensor of `shape`; `name` is the format's name or spelling."""

    op: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"
    compiled: bool = False

    @property
    def fmt(self) -> Format:
        """The format."""
        return parse(self.name)

    @property
    def spelling(self) -> str:
        """The format's spelling."""
        return str(self.fmt)

    @property
    def x(self) -> Tensor:
        """The numbers."""
        return normal(self.shape, self.dtype, self.device)

    @property
    def reads(self) -> int:
        """How often x must be read."""
        return reads(self.fmt, self.shape, self.dtype, last_cache(self.device))

    def bytes(self, reads: int | None = None) -> int:
        """Bytes that must move at least."""
        times = self.reads if reads is None else reads
        return moved(self.op, self.fmt, self.shape, self.dtype, times)


@dataclass(frozen=True)
class Layer:
    """A linear layer k -> n without bias. `made` keeps what was built of it, by contestant."""

    k: int
    n: int
    device: str = "cpu"
    compiled: bool = False
    dtype: torch.dtype = torch.float32
    made: dict[str, Any] = field(default_factory=dict, compare=False)

    @cached_property
    def weight(self) -> Tensor:
        """[n, k]."""
        return (normal((self.n, self.k), torch.float32, self.device) / self.k**0.5).to(self.dtype)

    def module(self) -> nn.Sequential:
        """A fresh nn.Linear in a container, so that it can be replaced."""
        linear = nn.Linear(self.k, self.n, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight.clone(), requires_grad=False)
        return nn.Sequential(linear).eval()


@dataclass(frozen=True, eq=False)
class Encoder:
    """A float model, to be quantized by each contestant on a copy."""

    model: nn.Module
    compiled: bool = False
