"""What layers are given and give while a model runs: hooks, and statistics in constant memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.layout import stored_shape
from blockscale.core.precision import float32_inside
from blockscale.layers.plan import Plan

SAMPLE = 256  # rows that InputStats.sample keeps
_ROWS = 4096  # multiplied at once: their float32 sums are added up in float64

Callback = Callable[[Tensor, Any], None]


@contextmanager
def watch(callbacks: Mapping[nn.Module, Callback]) -> Iterator[None]:
    """Call `callback(input, output)` after every call of a module, as long as this lasts.

    The input is what the module was given first, whatever its name.
    """
    handles = []
    try:
        for module, callback in callbacks.items():

            def hook(
                _: nn.Module, args: Any, kwargs: Any, y: Any, tell: Callback = callback
            ) -> None:
                tell(args[0] if args else next(iter(kwargs.values())), y)

            # before a user's own hooks, which may change what the layer gave
            handles.append(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def features_last(x: Tensor, layout: str, rank: int) -> Tensor:
    """A layer's input or output [...] as its quantizer sees it: a convolution's channels last.

    layout, rank: of the layer's weight.
    """
    if layout != "channels_last":
        return x
    return (x[None] if x.ndim < rank else x).movedim(1, -1)


def seen_by(plan: Plan, x: Tensor) -> Tensor:
    """The input or output x [...] of a planned layer, as its quantizer sees it."""
    assert plan.kind is not None and plan.parameter is not None
    return features_last(x, plan.kind.layout, plan.parameter.ndim)


def rows_of(plan: Plan, x: Tensor, before: nn.Module | None = None) -> Iterator[Tensor]:
    """A layer's input as [rows, k] float32 in pieces, k as in its stored weight [n, k].

    y = rows @ weight.T: the rows of a convolution are what its kernel sees at each place.
    before: what the input goes through first.
    """
    assert plan.parameter is not None and plan.kind is not None
    x = x.detach()
    if before is not None:
        x = _through(plan, before, x)
    k = stored_shape(plan.parameter.shape, plan.kind.layout)[-1]
    if plan.kind.layout == "channels_last":
        for one in x if x.ndim == plan.parameter.ndim else x[None]:
            yield from _seen_by_kernel(plan.module, one.to(torch.float32)).split(_ROWS)
    else:
        for piece in x.reshape(-1, k).split(_ROWS):
            yield piece.to(torch.float32)


def _through(plan: Plan, before: nn.Module, x: Tensor) -> Tensor:
    """x [...] through a Before module, which works along the last dimension."""
    y: Tensor = before(seen_by(plan, x))
    if plan.kind is not None and plan.kind.layout == "channels_last":
        return y.movedim(-1, 1)
    return y


def _seen_by_kernel(conv: Any, x: Tensor) -> Tensor:
    """x [channels, *size] -> [places, prod(kernel) * channels], channels fastest."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = F.pad(x[None], list(conv._reversed_padding_repeated_twice), mode)  # PyTorch's own, any mode
    kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
    if x.ndim == 3:  # a Conv1d is a Conv2d of height 1
        x, kernel = x[:, :, None], (1, *kernel)
        dilation, stride = (1, *dilation), (1, *stride)
    seen = F.unfold(x, kernel, dilation, 0, stride)  # [1, channels * places in the kernel, places]
    return seen.reshape(x.shape[1], -1, seen.shape[-1]).permute(2, 1, 0).flatten(1)


@dataclass(frozen=True)
class InputStats:
    """What is known of a layer's inputs X [rows, k], float32 unless said otherwise.

    rows: how many were seen, without those that hold a NaN or an infinity
    amax: [k], the largest |x| of each feature
    mean_abs: [k], the mean of |x|
    gram: [k, k] float64, X^T X / rows
    sample: at most 256 rows, each row seen being as likely as any other
    skipped: rows left out because they hold a NaN or an infinity
    places: how many places of a kernel a row holds, each of k / places features; 1 but for
        convolutions
    """

    rows: int
    amax: Tensor
    mean_abs: Tensor
    gram: Tensor
    sample: Tensor
    skipped: int = 0
    places: int = 1


class Statistics:
    """Gathers InputStats, k² numbers whatever the number of rows.

    features: k; places: as in InputStats.
    """

    def __init__(self, features: int, device: torch.device, places: int = 1):
        self._places = places
        zeros = torch.zeros(features, dtype=torch.float64, device=device)
        self._amax, self._total, self.rows, self.skipped = zeros.float(), zeros, 0, 0
        self._gram = zeros.new_zeros(features, features)
        self._sample = zeros.new_zeros(SAMPLE, features, dtype=torch.float32)
        self._draw = torch.Generator().manual_seed(0)  # the same rows in every run

    @staticmethod
    def nbytes(features: int) -> int:
        """Bytes needed for `features`, that of one piece's own sums included."""
        return features * features * (8 + 4) + (SAMPLE + _ROWS) * features * 4

    def add(self, x: Tensor) -> None:
        """x [rows, k] float32, at most a few thousand rows."""
        finite = x.isfinite().all(-1)
        kept = int(finite.sum())
        if kept < x.shape[0]:
            self.skipped += x.shape[0] - kept
            x = x[finite]
        if kept == 0:
            return
        size = x.abs()
        self._amax = torch.maximum(self._amax, size.amax(0))
        self._total += size.sum(0, dtype=torch.float64)
        with float32_inside(x):
            self._gram += x.T @ x
        self._keep(x)
        self.rows += kept

    def _keep(self, x: Tensor) -> None:
        """Reservoir sampling (Vitter 1985, algorithm R): row i takes a random place below i + 1."""
        index = torch.arange(self.rows, self.rows + x.shape[0])
        place = (
            torch.rand(len(index), generator=self._draw, dtype=torch.float64) * (index + 1)
        ).long()
        place = torch.where(index < SAMPLE, index, place)
        for row in (place < SAMPLE).nonzero().flatten().tolist():
            self._sample[place[row]] = x[row]

    def result(self) -> InputStats:
        """What was seen so far. Raises ValueError if that is nothing."""
        if self.rows == 0:
            raise ValueError("it saw no data")
        mean, gram = (self._total / self.rows).float(), self._gram / self.rows
        sample = self._sample[: self.rows]
        return InputStats(self.rows, self._amax, mean, gram, sample, self.skipped, self._places)
