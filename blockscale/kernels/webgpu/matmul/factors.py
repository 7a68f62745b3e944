"""The two factors of a product, as its kernels read them."""

import struct
from math import ceil, log2
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.launch import Window
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.matmul.shaders import storage

_FLUSHED = -126  # devices may take what is below 2^-126 for 0
_MARGIN = 21  # a sum may be off by 2^-18 of its terms' magnitudes (64 ulps); the rest is reserve


class Left(NamedTuple):
    """Floats [batches, rows, inner]; strides count numbers."""

    memory: Memory
    dtype: torch.dtype
    rows: int
    inner: int
    batches: int = 1
    strides: tuple[int, int, int] | None = None  # of batches, rows and columns; None: in order

    @property
    def sizes(self) -> dict[str, int]:
        """The strides by the names that shaders have for them."""
        return strides("left", self.strides or (self.rows * self.inner, self.inner, 1))


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
        return bits_of(2.0 ** (log2(worst) + _FLUSHED + _MARGIN + ceil(log2(max(inner, 1)))))


class Right(NamedTuple):
    """A weight [outputs, inner] as kernels read it.

    codes:     its memory, of which rows of `row_bytes` bytes are bound by that name; the others
               are in `buffers`
    chunk:     how few rows of the left factor read it; "" if they cannot
    chunk_quads: fours of its columns that a lane then reads at once
    """

    outputs: int
    choices: dict[str, str]
    constants: dict[str, Constant]
    buffers: dict[str, Memory | Window]
    sizes: dict[str, int]
    limits: Limits
    codes: Memory | None = None
    row_bytes: int = 0
    chunk: str = ""
    chunk_quads: int = 0


def floats(
    memory: Memory, dtype: torch.dtype, outputs: int, strides_of: tuple[int, int, int]
) -> Right:
    """Floats as the right factor; strides, in numbers, of batches, outputs and columns."""
    limits = Limits(2.0**30, 1.0, left=2.0**30)
    return Right(
        outputs,
        {"right": "floats"},
        {
            "RIGHT_STORAGE": storage(dtype),
            "OUTPUTS_ADJOIN": strides_of[1] == 1 and strides_of[2] != 1,
            **constants_of(limits),
        },
        {"w": memory},
        strides("right", strides_of),
        limits,
    )


def constants_of(limits: Limits) -> dict[str, Constant]:
    """Limits as shaders compare with them: the bits of magnitudes."""
    return {"LEFT_LIMIT": bits_of(limits.left), "VALUE_LIMIT": bits_of(limits.weight),
            "STEP_LIMIT": bits_of(limits.step)}  # fmt: skip


def strides(of: str, counts: tuple[int, int, int]) -> dict[str, int]:
    """Strides of a factor by the names that shaders have for them."""
    return dict(zip((f"{of}_batch", f"{of}_row", f"{of}_column"), counts, strict=True))


def bits_of(value: float) -> int:
    """The bits of the float32 nearest to a number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
