# SPDX-License-Identifier: BSD-3-Clause
"""Statistics against numpy; methods against each other on the samples."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.selection.system.statistics import (
    CalibrationStatistics,
    calibrated,
    recommended_method,
)


def samples():
    torch.manual_seed(0)
    found = [torch.randn(32, 16), torch.randn(8, 16)]
    found[0][0, 0] = 40.0
    return found


def test_statistics():
    own = [*samples(), torch.tensor([float("nan"), float("inf")])]
    found = CalibrationStatistics.of(own)
    x = torch.cat([each.flatten() for each in samples()]).double().numpy()
    assert (found.elements, found.nonfinite) == (640, 2)
    assert (found.low, found.high) == (x.min(), 40.0)
    assert found.mean == pytest.approx(x.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(x.std(), rel=1e-12)
    assert found.outliers == (abs(x - x.mean()) > 3 * x.std()).mean()
    for percent, value in found.percentiles.items():
        assert value == np.percentile(abs(x), percent, method="nearest")
    for none in ([], [torch.full((3,), float("nan"))]):
        with pytest.raises(ValueError, match="no element of the samples is finite"):
            CalibrationStatistics.of(none)


def test_the_method_with_the_least_error():
    method, errors = recommended_method(samples(), "int8")
    assert errors[method] == min(errors.values())
    x = torch.cat(samples())
    params = calibrated(samples(), "int8", "min_max")
    back = bs.quantize(x, "int8", params.scale).dequantize()
    assert errors["min_max"] == pytest.approx(float((x - back).double().square().mean()), rel=1e-6)
    assert params.scale.item() == np.float32(40.0) / np.float32(127)
