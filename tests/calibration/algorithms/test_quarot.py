# SPDX-License-Identifier: BSD-3-Clause
"""transform="quarot": tests/calibration/test_rotated.py has what it does to models."""

import pytest
import torch

from blockscale.calibration import algorithms
from blockscale.calibration.algorithms.hadamard import Hadamard
from blockscale.calibration.algorithms.quarot import QuaRot
from blockscale.core.parse import parse


def test_names_and_settings() -> None:
    assert isinstance(algorithms.transforms("quarot"), QuaRot) and QuaRot().rest is None
    assert isinstance(QuaRot(online=True).rest, Hadamard)
    with pytest.raises(ValueError, match=r"seed must be an integer, got 0\.5"):
        QuaRot(0.5)


def test_no_layer_is_rotated_by_itself() -> None:
    with pytest.raises(ValueError, match="rotates a whole model"):
        QuaRot().prepare(torch.zeros(2, 2), parse("int8"), None, None, "a")  # type: ignore[arg-type]
