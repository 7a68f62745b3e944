# SPDX-License-Identifier: BSD-3-Clause
"""The two factors of a product, as its kernels read them."""

from math import ldexp
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.launch import Window
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.matmul.shaders import RightRoles, storage
from blockscale.kernels.webgpu.spec import bits_of

_FLUSHED = -126  # devices may take what is below 2^-126 for 0
_MARGIN = 21  # a sum may be off by 2^-18 of its terms' magnitudes (64 ulps); the rest is reserve


class Places(NamedTuple):
    """Where numbers are in memory, counted in numbers: the first, and from one to the next."""

    start: int
    batch: int
    row: int
    column: int

    def named(self, factor: str) -> dict[str, int]:
        """By the names that shaders have for a factor's."""
        return {f"{factor}_{name}": value for name, value in self._asdict().items()}


class Left(NamedTuple):
    """Floats [batches, rows, inner], one after another where nothing is said of their places."""

    memory: Memory
    dtype: torch.dtype
    rows: int
    inner: int
    batches: int = 1
    places: Places | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Their places by the names that shaders have for them."""
        places = self.places or Places(0, self.rows * self.inner, self.inner, 1)
        return places.named("left")


class Limits(NamedTuple):
    """What the quick way takes; larger numbers go the exact one. All are powers of two.

    value: of a magnitude of an element before it is multiplied by its step
    step, left, weight: of magnitudes of steps, of the left factor, and of the right one's numbers
    """

    value: float
    step: float
    left: float = 2.0**20
    weight: float = 2.0**30

    def least(self, inner: int) -> int:
        """From here on a sum of `inner` products says by itself that nothing of it was lost: its
        bits.

        A number that is flushed to 0 takes with it at most 2^-126 times what multiplies it.
        """
        worst = max(self.weight, self.left * self.value, self.left * self.step, 1.0)
        return bits_of(ldexp(worst, _FLUSHED + _MARGIN + (max(inner, 1) - 1).bit_length()))


class Right(NamedTuple):
    """A weight [outputs, inner] as kernels read it.

    codes:     its memory, of which rows of `row_bytes` bytes are bound by that name; the others
               are in `buffers`
    chunk:     how few rows of the left factor read it; "" if they cannot
    chunk_quads: fours of its columns that a lane then reads at once
    """

    outputs: int
    roles: RightRoles
    constants: dict[str, Constant]
    buffers: dict[str, Memory | Window]
    sizes: dict[str, int]
    limits: Limits
    codes: Memory | None = None
    row_bytes: int = 0
    chunk: str = ""
    chunk_quads: int = 0

    def bound(self, first: int, count: int) -> dict[str, Memory | Window]:
        """What a launch binds that sees `count` outputs from the first on."""
        if self.codes is None:
            return dict(self.buffers)
        part = window(self.codes, first * self.row_bytes, count * self.row_bytes)
        return self.buffers | {"codes": part}


def window(memory: Memory, start: int, nbytes: int) -> Window:
    """A part of memory, in whole fours of words."""
    return Window(memory, start, max(-(-nbytes // 16) * 16, 16))


def floats(memory: Memory, dtype: torch.dtype, outputs: int, places: Places) -> Right:
    """Floats as the right factor; a row of theirs belongs to an output."""
    limits = Limits(2.0**30, 1.0, left=2.0**30)
    return Right(
        outputs,
        RightRoles("floats"),
        {
            "RIGHT_STORAGE": storage(dtype),
            "OUTPUTS_ADJOIN": places.row == 1 and places.column != 1,
            **constants_of(limits),
        },
        {"w": memory},
        places.named("right"),
        limits,
    )


def constants_of(limits: Limits) -> dict[str, Constant]:
    """Limits as shaders compare with them: the bits of magnitudes."""
    return {"LEFT_LIMIT": bits_of(limits.left), "VALUE_LIMIT": bits_of(limits.weight),
            "STEP_LIMIT": bits_of(limits.step)}  # fmt: skip
