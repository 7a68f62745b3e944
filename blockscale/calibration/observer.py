# SPDX-License-Identifier: BSD-3-Clause
"""What every observer is: it sees tensors and chooses the range of each block's scale."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from blockscale.calibration.merging import MergeableStatistics
from blockscale.core import reference
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.block import Blocks
from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import QParams, Ranges


class Observer(MergeableStatistics):
    """Sees tensors and chooses the range of each block of a format from what it saw.

    Every statistic is a buffer whose size does not grow with the number of batches. NaN and
    infinities are counted and never enter a statistic.

    low, high: float32 [scale's shape], the smallest finite value (at most 0, unless the format has
        an offset) and the largest

    Raises ValueError for binary and ternary elements where `means` is False: their scale is a mean;
    and for formats whose scales are given and not chosen.
    """

    setting: ClassVar[str] = ""  # the argument that a spec gives after its colon
    means: ClassVar[bool] = False  # whether it can choose a scale that is a mean
    merges_exactly: ClassVar[bool] = True  # merged, it is as if one observer had seen everything
    weighted: bool = False  # whether `observe` takes weights

    low: Tensor
    high: Tensor

    def __init__(self, fmt: str | Format):
        form = parse(fmt)
        super().__init__(str(form))
        self.format = form
        if is_mean(self.format) and not self.means:
            raise ValueError(
                f"{self.fmt}: the scale of a {self.format.element.name} element is a mean, "
                f"which the observer {self.name!r} cannot compute: use 'mean' or 'mse'"
            )
        if form.unchosen:
            raise ValueError(f"{self.fmt}: {form.unchosen}: no observer can choose it")
        self._statistic("low", "min")
        self._statistic("high", "max")
        self._bare = form.offset is not None  # ranges need not hold 0
        if self._bare:
            self._empty |= {"low": torch.inf, "high": -torch.inf}

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """What follows the colon of a spec -> settings. Raises ValueError if it takes none."""
        if not cls.setting:
            raise ValueError(f"the observer {cls.name!r} takes no setting, got {text!r}")
        try:
            return {cls.setting: float(text)}
        except ValueError as error:
            raise ValueError(
                f"'{cls.name}:{text}': the {cls.setting} must be a number, got {text!r}"
            ) from error

    def forward(self, x: Tensor) -> Tensor:
        """Observe x [...] and return it."""
        self.observe(x)
        return x

    @torch.no_grad()
    def observe(self, x: Tensor, weight: Tensor | None = None) -> None:
        """x [...] float32, bfloat16 or float16 -> the statistics.

        With the blocks `tensor` and `channel-1` any rank and any number of rows will do. With other
        blocks the scale's shape has to stay the same.

        weight: how much each element matters, at least 0, broadcastable to x; for some observers.

        Raises TypeError for other dtypes, ValueError for a shape or a weight that does not fit.
        """
        with _with_subnormals(x.numel()):
            self._observe(x.detach(), None if weight is None else weight.detach())

    def _observe(self, x: Tensor, weight: Tensor | None) -> None:
        if weight is not None:
            weight = self._rows(self._weight(weight, x))
        x = self._rows(reference.widen(x))
        shape = self.format.block.scale_shape(x.shape)
        if x.numel() == 0:
            return
        self._start(shape)
        extremes = torch.aminmax(x)  # one pass, and NaN and infinities show in them
        finite, nans, infinities = None, 0, 0
        if not bool(torch.stack(extremes).isfinite().all()):
            finite = x.isfinite()
            nans = int(x.isnan().sum())
            infinities = x.numel() - int(finite.sum()) - nans
            odd, x = x, torch.where(finite, x, 0.0)
            extremes = torch.aminmax(x)
        if self._bare:
            low, high = self._bare_range(x if finite is None else odd)
        else:
            low, high = self._range_of(x, extremes)
            low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        self._update(x, low, high, finite, weight)
        self.samples += x.numel()
        self.nans += nans
        self.infinities += infinities

    def _weight(self, weight: Tensor, x: Tensor) -> Tensor:
        if not self.weighted:
            raise ValueError(f"the observer {self.name!r} takes no weight")
        weight = reference.widen(weight).expand(x.shape)
        if not bool((weight >= 0).all() & weight.isfinite().all()):
            raise ValueError(
                "the weight of a sample must be finite and >= 0, found a NaN, an infinity or "
                "a negative number"
            )
        return weight

    def _rows(self, x: Tensor) -> Tensor:
        """x [...] as rows of features, where the block is one for which only those matter."""
        if self.format.block.static:
            return x.reshape(-1, x.shape[-1] if x.ndim else 1)
        return x

    def _range_of(self, x: Tensor, extremes: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The smallest and largest value of each block of a finite x."""
        if self.format.block.name == "tensor":
            return extremes[0].reshape(1, 1), extremes[1].reshape(1, 1)
        if self.format.block.name == "channel-1":
            return x.amin(0, keepdim=True), x.amax(0, keepdim=True)
        return Blocks(x, self.format.block).range()

    def _bare_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same of any x, where ranges need not hold 0: inf and -inf without a finite value."""
        low, high = Blocks(x, self.format.block).range(bare=True)
        some = Blocks(x.isfinite().to(x.dtype), self.format.block).range()[1] > 0
        return torch.where(some, low, torch.inf), torch.where(some, high, -torch.inf)

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        """x [...] float32, zeros where not `finite`; low, high [scale's shape], its range."""
        del x, finite, weight
        self.low = torch.minimum(self.low, low)
        self.high = torch.maximum(self.high, high)

    def range(self) -> Ranges:
        """The chosen range of each block [scale's shape]; no block is poisoned, whatever was seen.

        Raises ValueError if no finite element was seen.
        """
        if self.finite == 0:
            raise ValueError(f"{self.name!r} ({self.fmt}) saw no data: {self.describe()}")
        with _with_subnormals():
            low, high = self._choose()
        return Ranges(low, high, torch.zeros_like(low, dtype=torch.bool))

    def _choose(self) -> tuple[Tensor, Tensor]:
        """The chosen low and high, once there is data."""
        return self.extremes()

    def extremes(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest value of each block [scale's shape]; 0 where it saw nothing."""
        none = self.low > self.high
        return self.low.masked_fill(none, 0.0), self.high.masked_fill(none, 0.0)

    def qparams(self) -> QParams:
        """The stored scale, its outer scale and the zero point. Raises as `range`."""
        result = self.range()
        with _with_subnormals():
            return reference.qparams_from_range(*result, self.format)


def _with_subnormals(*elements: int) -> AbstractContextManager[None]:
    """Subnormals are kept; under a compiler, which has its own arithmetic, nothing is done."""
    return nullcontext() if torch.compiler.is_compiling() else subnormals_kept(*elements)


def is_mean(fmt: Format) -> bool:
    """Whether scales in `fmt` are means (binary, ternary) and not ranges."""
    return type(fmt.element).magnitude is not Element.magnitude
