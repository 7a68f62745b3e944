# SPDX-License-Identifier: BSD-3-Clause
"""A format, and the tensors of a call, as the primitives' kernels take them."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.spec import spec
from blockscale.kernels.operand import Device, Storage, in_order


class Form(Storage):
    """A format as the primitives take it: how its tensors are stored, and what kernels ask of it.

    spec:      its numbers
    inner:     the format of the scale's own scale, for two levels; else None
    means:     scales are chosen from means of magnitudes
    one_outer: there is one outer scale for everything, which a pass of its own chooses
    """

    def __init__(self, fmt: Format):
        super().__init__(fmt)
        self.spec = spec(fmt.spelling)
        self.inner = fmt.scale.inner if isinstance(fmt.scale, TwoLevel) else None
        self.means = self.spec.statistic in ("mean", "mean_above")
        self.one_outer = self.inner is not None and self.inner.block.name == "tensor"

    def checked_codes(
        self, packed: Tensor, shape: tuple[int, ...], device: Device = None
    ) -> Tensor:
        """As `Storage.checked_codes`; `device` is that of the codes, which kernels must reach."""
        on_device(packed)
        return super().checked_codes(packed, shape, device or packed.device)

    def given_parts(
        self, x: Tensor, shape: Sequence[int], scale: Tensor, zero: Tensor | None,
        outer: Tensor | None, more: Sequence[Tensor] | None = None,
    ) -> QParams:  # fmt: skip
        """A caller's scale for a tensor of `shape`, on x's device and as `per_block` gives it.

        Raises ValueError if it does not fit.
        """
        shape = torch.Size(shape)
        return self.per_block(self.checked_parts(shape, scale, zero, outer, x.device, more))

    def per_block(self, parts: QParams) -> QParams:
        """The same with an outer scale for each block, unless there is only one at all."""
        if self.inner is None or self.one_outer:
            return parts
        assert parts.outer is not None
        shape = parts.scale.shape
        outer = self.inner.block.expand(parts.outer, shape).expand(shape).contiguous()
        return parts._replace(outer=outer)


@cache
def form(spelling: str) -> Form:
    """The Form of a format's name or spelling. Raises ValueError if there is no such format."""
    return Form(parse(spelling))


def floats(x: Tensor) -> Tensor:
    """Numbers as kernels read them: contiguous, at a multiple of four bytes.

    Raises TypeError for a dtype that the reference refuses, ValueError if x is not on a GPU.
    """
    if x.dtype not in FLOATS:
        reference.widen(x)
    on_device(x)
    return in_order(x, 4)  # kernels may read 32 bits


def on_device(x: Tensor) -> None:
    """Raises ValueError if the kernels cannot reach x's memory."""
    if not (x.is_cuda or (interpreting() and x.is_cpu)):
        raise ValueError(f"expected a tensor on a CUDA device, found one on {x.device}")


def seed_numbers(fmt: Form, seed: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """The seed on x's device, and how many numbers it holds; None and 0 where none is needed.

    seed: int64 [] or [2]. Raises ValueError if it is missing or something else.
    """
    checked = fmt.checked_seed(seed, anywhere=True)
    if checked is None:
        return None, 0
    return checked.to(x.device, non_blocking=True).contiguous(), checked.numel()
