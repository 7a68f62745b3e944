# SPDX-License-Identifier: BSD-3-Clause
"""Codes that are powers of two are found by comparing: beside every number where one turns over."""

import pytest

from tests.support.cuda_device_inputs import turning
from tests.support.cuda_equal import DTYPES, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("fmt", ["log4:token:fp32", "int2:token:fp32", "log3:token:bf16"])
def test_largest_number_as_scale(fmt: str) -> None:
    for dtype in DTYPES:
        assert wrong(turning(dtype, 24), fmt) == [], dtype
