# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a layer's inputs after many batches, in constant memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.calibration.padding import Callback as Callback
from blockscale.calibration.padding import Neighbours, neighbours_of, sum_of
from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.pack import inputs_first, of_convolution, stored_shape
from blockscale.layers.plan import Plan

# A layer's inputs as its quantizer and its stored weight see them: features last, in rows.

PIECE = 4096  # rows that are given at once: their float32 sums are added up in float64


def features_last(x: Tensor, layout: str, rank: int) -> Tensor:
    """A layer's input or output [...] as its quantizer sees it: a convolution's channels last.

    layout, rank: of the layer's weight.
    """
    if not of_convolution(layout):
        return x
    return (x[None] if x.ndim < rank else x).movedim(1, -1)


def seen_by(plan: Plan, x: Tensor) -> Tensor:
    """The input or output x [...] of a planned layer, as its quantizer sees it."""
    return features_last(x, plan.layout, plan.parameter.ndim)


def rows_of(
    plan: Plan, x: Tensor, before: nn.Module | None = None, size: Sequence[int] = ()
) -> Iterator[Tensor]:
    """A layer's input as [rows, k] float32 in pieces, k as in its stored weight [n, k].

    y = rows @ weight.T: the rows of a convolution are what its kernel sees at each place; those of
    a transposed one what reaches each place of its output, zeros where a stride leaves them out.
    before: what the input goes through first.
    size: of the layer's output, which a call of a transposed convolution may ask for.
    """
    x = x.detach()
    if before is not None:
        x = _through(plan, before, x)
    k = stored_shape(plan.parameter.shape, plan.layout)[-1]
    if of_convolution(plan.layout):
        transposed = inputs_first(plan.layout)
        for one in x if x.ndim == plan.parameter.ndim else x[None]:
            wide, conv = one.to(torch.float32), plan.module
            rows = _reaching_outputs(conv, wide, size) if transposed else _patches(conv, wide)
            yield from rows.split(PIECE)
    else:
        for piece in x.reshape(-1, k).split(PIECE):
            yield piece.to(torch.float32)


def _through(plan: Plan, before: nn.Module, x: Tensor) -> Tensor:
    """x [...] through a Before module, which works along the last dimension."""
    y: Tensor = before(seen_by(plan, x))
    if of_convolution(plan.layout):
        return y.movedim(-1, 1)
    return y


def _patches(conv: Any, x: Tensor) -> Tensor:
    """x [channels, *size] -> what a convolution's kernel sees [places, prod(kernel) * channels]."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = F.pad(x[None], list(conv._reversed_padding_repeated_twice), mode)  # PyTorch's own, any mode
    return _windows(x[0], conv.kernel_size, conv.stride, conv.dilation).flatten(1)


def _reaching_outputs(conv: Any, x: Tensor, size: Sequence[int]) -> Tensor:
    """x [channels, *size] -> [places of the output, prod(kernel) * channels], channels fastest.

    A transposed convolution is a plain one, with its kernel the other way round, of x with zeros
    between its values (Dumoulin and Visin 2016, arXiv 1603.07285, section 4).
    size: of its output [..., *size], perhaps with batch and channels; empty for the usual one.
    """
    dims = len(conv.kernel_size)
    extents = [(n - 1) * s + 1 for n, s in zip(x.shape[1:], conv.stride, strict=True)]
    spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    parts = zip(extents, spans, conv.padding, conv.output_padding, strict=True)
    usual = [n + span - 2 * p + more for n, span, p, more in parts]
    apart = x.new_zeros(x.shape[0], *extents)
    apart[(slice(None), *(slice(None, None, s) for s in conv.stride))] = x
    ends = zip(extents, spans, conv.padding, size[-dims:] or usual, strict=True)
    around = [(span - p, target - n + p) for n, span, p, target in ends]  # below 0: cut off
    padded = F.pad(apart, [edge for pair in reversed(around) for edge in pair])
    rows = _windows(padded, conv.kernel_size, (1,) * dims, conv.dilation)
    return rows.unflatten(1, conv.kernel_size).flip(list(range(1, dims + 1))).flatten(1)


def _windows(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """x [channels, *size], padded -> [places, prod(kernel), channels]."""
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(1 + i, d * (k - 1) + 1, s)[..., ::d]  # [channels, *places, *kernel so far]
    last = x.movedim(0, -1)
    return last.reshape(-1, prod(kernel), x.shape[0])


Size = tuple[int, ...]


def with_size(add: Callable[[Tensor, Size], None]) -> Callback:
    """A callback that tells only the size of what a layer gave."""

    def call(x: Tensor, y: Any) -> None:
        add(x, tuple(y.shape) if isinstance(y, Tensor) else ())

    return call


# See what modules are given and give while a model runs.

_UNHEARD: "WeakSet[nn.Module]" = WeakSet()


@contextmanager
def unheard(modules: Iterable[nn.Module]) -> Iterator[None]:
    """As long as this lasts, `watch` tells nothing of calls of these modules."""
    own = [module for module in modules if module not in _UNHEARD]
    _UNHEARD.update(own)
    try:
        yield
    finally:
        for module in own:
            _UNHEARD.discard(module)


@contextmanager
def watch(callbacks: Mapping[nn.Module, Callback]) -> Iterator[None]:
    """Call `callback(input, output)` after every call of a module, as long as this lasts.

    The input is what the module was given first, whatever its name.
    """
    handles = []
    try:
        for module, callback in callbacks.items():

            def hook(
                own: nn.Module, args: Any, kwargs: Any, y: Any, tell: Callback = callback
            ) -> None:
                if own in _UNHEARD:
                    return
                tell(args[0] if args else next(iter(kwargs.values())), y)

            # before a user's own hooks, which may change what the layer gave
            handles.append(module.register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


SAMPLE = 256  # rows that InputStats.sample keeps


@dataclass(frozen=True)
class InputStats:
    """What is known of a layer's inputs X [rows, k], float32 unless said otherwise.

    rows: how many were seen, without those that hold a NaN or an infinity
    amax: [k], the largest |x| of each feature
    mean_abs: [k], the mean of |x|
    gram: [k, k] float64, X^T X / rows; None for a transform that says it needs none
    sample: at most 256 rows, each row seen being as likely as any other
    skipped: rows left out because they hold a NaN or an infinity
    places: how many places of a kernel a row holds, each of k / places features; 1 but for
        convolutions
    """

    rows: int
    amax: Tensor
    mean_abs: Tensor
    gram: Tensor | None
    sample: Tensor
    skipped: int = 0
    places: int = 1


class InputStatsCollector:
    """Gathers InputStats, k² numbers whatever the number of rows.

    features: k; places: as in InputStats; gram: whether that is gathered, which takes most of the
    time.
    """

    def __init__(self, features: int, device: torch.device, places: int = 1, *, gram: bool = True):
        self._places = places
        zeros = torch.zeros(features, dtype=torch.float64, device=device)
        self._amax, self._total, self.rows, self.skipped = zeros.float(), zeros, 0, 0
        self._gram = zeros.new_zeros(features, features) if gram else None
        self.neighbours: Neighbours | None = None
        self._sample = zeros.new_zeros(SAMPLE, features, dtype=torch.float32)
        self._draw = torch.Generator().manual_seed(0)  # the same rows in every run

    @staticmethod
    def nbytes(features: int) -> int:
        """Bytes needed for `features`, that of one piece's own sums included."""
        return features * features * (8 + 4) + (SAMPLE + PIECE) * features * 4

    def add(self, x: Tensor) -> None:
        """x [rows, k] float32, at most a few thousand rows."""
        finite = x.isfinite().all(-1)
        rest = int(finite.sum())
        if rest < x.shape[0]:
            self.skipped += x.shape[0] - rest
            x = x[finite]
        if rest == 0:
            return
        self.neighbours = sum_of(self.neighbours, neighbours_of(x))
        size = x.abs()
        self._amax = torch.maximum(self._amax, size.amax(0))
        self._total += size.sum(0, dtype=torch.float64)
        if self._gram is not None:
            with float32_inside(x):
                self._gram += x.T @ x
        self._keep(x)
        self.rows += rest

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
        mean = (self._total / self.rows).float()
        gram = None if self._gram is None else self._gram / self.rows
        sample = self._sample[: self.rows]
        return InputStats(self.rows, self._amax, mean, gram, sample, self.skipped, self._places)


class DriftCollector:
    """Gathers Xq^T (Xf - Xq) / rows: how the inputs Xq of a layer miss those of the float model.

    features: k
    """

    def __init__(self, features: int, device: torch.device):
        self._sum = torch.zeros(features, features, dtype=torch.float64, device=device)
        self.rows = self.skipped = 0

    @staticmethod
    def nbytes(features: int) -> int:
        """Bytes needed for `features`, that of one piece's own sums included."""
        return features * features * (8 + 4) + 2 * PIECE * features * 4

    def add(self, quantized: Tensor, tensor: Tensor) -> None:
        """Rows Xq and Xf [rows, k] float32 of the same tokens; those that hold a NaN or an infinity
        on either side are left out. Raises ValueError for other shapes."""
        if quantized.shape != tensor.shape or quantized.shape[-1:] != self._sum.shape[:1]:
            raise ValueError(
                f"expected rows of {self._sum.shape[0]} features in both models, found "
                f"{tuple(quantized.shape)} and {tuple(tensor.shape)}"
            )
        finite = quantized.isfinite().all(-1) & tensor.isfinite().all(-1)
        rest = int(finite.sum())
        if rest < len(finite):
            self.skipped += len(finite) - rest
            quantized, tensor = quantized[finite], tensor[finite]
        with float32_inside(quantized):
            self._sum += quantized.T @ (tensor - quantized)
        self.rows += rest

    def result(self) -> Tensor | None:
        """The drift [k, k] float64; None if nothing was seen."""
        return self._sum / self.rows if self.rows else None
