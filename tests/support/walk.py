# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/calibration/walk/test_walk.py: `quietly`."""

import warnings
from typing import Any

from torch import nn

from blockscale.calibration.calibrate import calibrate


def quietly(model: nn.Module, batches: Any, recipe: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calibrate(model, batches, recipe, **{"progress": False} | options)
