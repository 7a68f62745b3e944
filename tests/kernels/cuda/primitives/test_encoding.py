# SPDX-License-Identifier: BSD-3-Clause
"""Programs of ordinary blocks and others beside them, and scales that nothing keeps."""

import pytest
import torch

from tests.support.cuda_equal import DTYPES, wrong

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(3)
@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("fmt", ["int8:token:fp32", "e4m3:token:fp32", "ternary:token:fp32"])
def test_each_program_takes_its_own_branch(fmt: str) -> None:
    """One program's rows are ordinary, another's hold zeros, NaN or tiny numbers."""
    x = torch.randn(200, 64)
    x[130], x[150, 3], x[199] = 0, torch.nan, x[199] * 2.0**-120
    for dtype in DTYPES[:2]:
        assert wrong(x.to(dtype), fmt) == [], dtype
