"""What is known of a layer's inputs after many batches, in constant memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.calibrate.layer_rows import PIECE
from blockscale.core.arithmetic.precision import float32_inside

SAMPLE = 256  # rows that InputStats.sample keeps


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
