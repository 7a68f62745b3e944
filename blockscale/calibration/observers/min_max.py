# SPDX-License-Identifier: BSD-3-Clause
"""The smallest and the largest value that were seen."""

from typing import ClassVar

from blockscale.calibration.observer import Observer


class MinMax(Observer):
    """The range of everything that was seen: nothing saturates, and one outlier sets the scale."""

    name: ClassVar[str] = "min_max"
