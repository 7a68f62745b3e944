# SPDX-License-Identifier: BSD-3-Clause
"""A share of the range that was seen, so that the largest values saturate."""

# Goes to:   blockscale/calibration/observers/trimmed.py
# Its test:  tests/calibration/observers/test_trimmed.py: a search on small tensors by brute force
#            that finds the same range.
# By itself: its name in bs.calibrate(observer="trimmed:0.8") and bs.prepare_qat, NaN and infinities
#            counted, state_dict, merging over batches and processes.

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.observers import Observer
from blockscale.core.format import Format


class Trimmed(Observer):
    """Both ends of the range times `share`. Raises ValueError unless 0 < share <= 1."""

    name: ClassVar[str] = "trimmed"
    setting: ClassVar[str] = "share"

    def __init__(self, fmt: str | Format, share: float = 0.9):
        super().__init__(fmt)
        if not 0 < share <= 1:
            raise ValueError(f"share is above 0 and at most 1, not {share}")
        self.share = share

    def _choose(self) -> tuple[Tensor, Tensor]:
        return self.low * self.share, self.high * self.share
