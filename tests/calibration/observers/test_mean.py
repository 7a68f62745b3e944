# SPDX-License-Identifier: BSD-3-Clause
"""The mean that is the scale of binary and ternary numbers, against its definition."""

import numpy as np
import torch

from tests.calibration.observers.seen import draw, seeing


def test_mean_weighs_batches_by_their_elements():
    a, b = draw(8, 8), 9 * draw(24, 8, seed=1)
    b[0] = torch.nan
    values = torch.cat([a, b[1:]]).abs().double()
    binary = seeing("mean", "binary:tensor:fp32", a, b)
    np.testing.assert_allclose(binary.qparams().scale.item(), values.mean().item(), rtol=1e-6)
    merged = seeing("mean", "binary:tensor:fp32", b).merge_(seeing("mean", "binary:tensor:fp32", a))
    np.testing.assert_allclose(merged.range().high.item(), values.mean().item(), rtol=1e-6)
