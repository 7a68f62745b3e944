# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a layer's inputs after many batches, in constant memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.layer_rows import PIECE
from blockscale.core.arithmetic.precision import float32_inside

SAMPLE = 256  # rows that InputStats.sample keeps
_STRIP = 256  # columns of a product that are computed at once


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


class InputStatsCollector:
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
        return features * features * (8 + 4) + (SAMPLE + PIECE) * features * 4

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


class Product(NamedTuple):
    """X^T X [k, k] of some rows, how many they were, and how many were left out."""

    sum: Tensor
    rows: int
    skipped: int


def product_of(x: Tensor) -> Product:
    """X [rows, k] float32, at most a few thousand rows -> their product, without rows that hold a
    NaN or an infinity."""
    with float32_inside(x):
        product = _symmetric(x)
        if bool(product.diagonal().isfinite().all()):  # so x is: a square is never below 0
            return Product(product, len(x), 0)
        kept = x[x.isfinite().all(-1)]
        return Product(_symmetric(kept), len(kept), len(x) - len(kept))


def _symmetric(x: Tensor) -> Tensor:
    """X^T X; on the CPU, of wide rows, little more than what lies on one side of the diagonal."""
    k = x.shape[1]
    if k < 2 * _STRIP or not x.is_cpu:
        return x.T @ x
    found = x.new_empty(k, k)
    for first in range(0, k, _STRIP):
        some = slice(first, min(first + _STRIP, k))
        strip = x[:, some].T @ x[:, first:]
        found[first:, some], found[some, first:] = strip.T, strip
    return found


class GramCollector:
    """Gathers the gram matrix of a layer's inputs alone.

    features: k
    """

    def __init__(self, features: int, device: torch.device):
        self._sum = torch.zeros(features, features, dtype=torch.float64, device=device)
        self.rows = self.skipped = 0

    def add(self, product: Product) -> None:
        """What `product_of` made of further rows."""
        self._sum += product.sum
        self.rows += product.rows
        self.skipped += product.skipped

    def result(self) -> Tensor:
        """X^T X / rows [k, k] float64. Raises ValueError if nothing was seen."""
        if self.rows == 0:
            raise ValueError("it saw no data")
        return self._sum / self.rows


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

    def add(self, quantized: Tensor, wanted: Tensor) -> None:
        """Rows Xq and Xf [rows, k] float32 of the same tokens; those that hold a NaN or an infinity
        on either side are left out. Raises ValueError for other shapes."""
        if quantized.shape != wanted.shape or quantized.shape[-1:] != self._sum.shape[:1]:
            raise ValueError(
                f"expected rows of {self._sum.shape[0]} features in both models, found "
                f"{tuple(quantized.shape)} and {tuple(wanted.shape)}"
            )
        finite = quantized.isfinite().all(-1) & wanted.isfinite().all(-1)
        kept = int(finite.sum())
        if kept < len(finite):
            self.skipped += len(finite) - kept
            quantized, wanted = quantized[finite], wanted[finite]
        with float32_inside(quantized):
            self._sum += quantized.T @ (wanted - quantized)
        self.rows += kept

    def result(self) -> Tensor | None:
        """The drift [k, k] float64; None if nothing was seen."""
        return self._sum / self.rows if self.rows else None
