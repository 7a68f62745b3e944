# SPDX-License-Identifier: BSD-3-Clause
"""What a run measures: sizes, what is left out, and for how long."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from blockscale.core.parse import parse

ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """Shapes. `linear` says for each (k, n) which numbers of rows m are measured.

    reading: the numbers of rows at which a layer's time is that of reading its weight
    """

    matrix: tuple[int, int] = (4096, 4096)
    small: tuple[int, int] = (16, 64)
    linear: Mapping[tuple[int, int], tuple[int, ...]] = field(
        default_factory=lambda: {(4096, 4096): ROWS, (384, 1536): (2048,), (1536, 384): (2048,)}
    )
    reading: tuple[int, ...] = (1,)
    copies: tuple[int, ...] = (32 * MIB, 64 * MIB, 96 * MIB, 128 * MIB)
    sentences: int = 32
    tokens: int = 64


FULL = Sizes()
QUICK = Sizes(
    linear={(4096, 4096): (1, 32, 512), (384, 1536): (2048,)}, copies=(64 * MIB, 128 * MIB)
)
TINY = Sizes(
    matrix=(4, 256),
    small=(2, 64),
    linear={(256, 32): (1, 2)},
    copies=(4096,),
    sentences=2,
    tokens=8,
)  # for tests: everything runs, and says nothing about speed
_GPU_COPIES = (256 * MIB, 1024 * MIB, 2048 * MIB)
GPU = Sizes(
    matrix=(16384, 16384),
    linear={
        (8192, 28672): (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
        (8192, 8192): (1, 16, 4096),
    },
    reading=(1, 16),
    copies=_GPU_COPIES,
)
GPU_QUICK = Sizes(
    matrix=(16384, 16384),
    linear={(8192, 28672): (1, 16, 256), (8192, 8192): (4096,)},
    reading=(1, 16),
    copies=_GPU_COPIES[-1:],
)


def sizes(device: str, quick: bool) -> Sizes:
    """What is measured on a device unless somebody says otherwise."""
    if device.partition(":")[0] == "cpu":
        return QUICK if quick else FULL
    return GPU_QUICK if quick else GPU


@dataclass(frozen=True)
class Settings:
    """One run's choices.

    quick: fewer formats and rows
    peers, compiled: other libraries beside ours; all of those under torch.compile too (minutes)
    only: a part of a case's name, or a glob on it; empty for all
    formats: names or spellings in place of the catalogue
    seconds: after these no further case begins. Raises ValueError if they are negative
    """

    device: str = "cpu"
    quick: bool = False
    peers: bool = True
    compiled: bool = False
    only: str = ""
    formats: tuple[str, ...] = ()
    seconds: float = 480.0
    sizes: Sizes = FULL

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise ValueError(f"seconds must be >= 0, got {self.seconds:g}")

    def wants(self, name: str) -> bool:
        """Whether the case `name` is measured."""
        return self.only in name or fnmatchcase(name, self.only)

    def picks(self, fmt: str) -> bool:
        """Whether a format is measured."""
        return not self.formats or str(parse(fmt)) in {str(parse(each)) for each in self.formats}

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of the float layer that quantized ones are compared with."""
        return torch.float32 if self.kind == "cpu" else torch.bfloat16

    @property
    def full(self) -> bool:
        """Whether the run measures everything, so that a page can be made of it."""
        everything = not (self.quick or self.only or self.formats)
        return everything and self.peers and self.sizes == sizes(self.device, quick=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a file, and what a run that goes on must agree with."""
        data = asdict(self) | {"full": self.full, "formats": list(self.formats)}
        linear = {f"{k}x{n}": list(rows) for (k, n), rows in self.sizes.linear.items()}
        data["sizes"] = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in {**vars(self.sizes), "linear": linear}.items()
        }
        return data
