# SPDX-License-Identifier: BSD-3-Clause
"""What a contestant is asked for: a primitive on a tensor, a linear layer, an encoder."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.bench import traffic
from blockscale.bench.machine import last_cache
from blockscale.core.format import Format
from blockscale.core.parse import parse


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
        return traffic.reads(self.fmt, self.shape, self.dtype, last_cache(self.device))

    def bytes(self, reads: int | None = None) -> int:
        """Bytes that must move at least."""
        times = self.reads if reads is None else reads
        return traffic.moved(self.op, self.fmt, self.shape, self.dtype, times)


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
