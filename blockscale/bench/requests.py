# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: cases, what contestants are asked for, and those that race in each."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blockscale.bench.machine import last_cache
from blockscale.bench.timing import Timing
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel

# What a contestant is asked for, and how many bytes an operation must move at least.

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


def traffic(op: str, fmt: Format, shape: Shape, dtype: torch.dtype, times_read: int) -> int:
    """Bytes of one primitive: input and output, scales too. `dtype` is that of the float side."""
    floats, stored = prod(shape) * dtype.itemsize, stored_bytes(fmt, shape)
    if op == "quantize":
        return times_read * floats + stored
    if op == "dequantize":
        return stored + floats
    if op == "fake_quantize":
        return times_read * floats + floats
    raise ValueError(f"unknown primitive {op!r}; choose from quantize, dequantize, fake_quantize")


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
        return traffic(self.op, self.fmt, self.shape, self.dtype, times)


@dataclass(frozen=True)
class Layer:
    """A linear layer k -> n without bias. `cache` keeps what was built of it, by contestant."""

    k: int
    n: int
    device: str = "cpu"
    compiled: bool = False
    dtype: torch.dtype = torch.float32
    cache: dict[str, Any] = field(default_factory=dict, compare=False)

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


# What is measured: cases, and the contestants that race in each.

Call = Callable[[], Any]
Targets = Mapping[str, tuple[str, float]]  # {figure: ("at_least" or "at_most", value)}
NO_KERNEL = "no .* kernel runs"  # how the registry's warning begins


@dataclass(frozen=True)
class Contestant:
    """One that races.

    kind: "ours", "peer" or "ceiling"
    note: what a reader must know to compare it
    bytes: those that it must move at least
    facts: figures that no clock gives, such as a cosine
    probe: whether to ask which backend runs it
    """

    name: str
    kind: Literal["ours", "peer", "ceiling"]
    call: Call
    note: str = ""
    bytes: int | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    targets: Targets = field(default_factory=dict)
    probe: bool = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps a peer's warnings, and ours about a missing kernel, which is recorded, in here."""
        with warnings.catch_warnings():
            if self.kind == "ours":
                warnings.filterwarnings("ignore", NO_KERNEL, UserWarning)
            else:
                warnings.simplefilter("ignore")
            yield


@dataclass(frozen=True)
class Skipped:
    """A contestant that does not race, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Case:
    """Contestants whose times are compared with each other.

    about: what it is, as plain data
    contestants: makes the data and all who race
    figures: (a contestant, its time, all times) -> what is told of it
    weight: its part of the run's time
    cold: one call a round, so that the others' data has left the cache by the next
    host: the processor's time is measured, wherever the work is done
    """

    name: str
    group: str
    about: Mapping[str, Any]
    contestants: Callable[[], Iterable[Contestant | Skipped]]
    figures: Callable[[Contestant, Timing, Mapping[str, Timing]], dict[str, float]]
    weight: float = 1.0
    cold: bool = False
    host: bool = False


def best(times: Mapping[str, Timing], prefix: str) -> float:
    """The shortest median, in seconds, of the contestants whose names begin with `prefix`."""
    return min(timing.median for name, timing in times.items() if name.startswith(prefix))


@dataclass(frozen=True)
class Peer:
    """Another library's way to do the same.

    build: what it makes depends on the kind, see blockscale/bench/peers/__init__.py
    reads: how often it reads its input, where it has less to find out than ours
    """

    name: str
    build: Callable[[], Any]
    note: str = ""
    reads: int | None = None
