# SPDX-License-Identifier: BSD-3-Clause
"""What is decided for a launch."""

import pytest
import torch

from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize(
    "fmt", ["mxfp4", "int6:group12:fp32", "e4m3:tensor:fp32", "int8:group16@0:fp32:stochastic"]
)
def test_several_programs(fmt: str) -> None:
    assert wrong(torch.randn(45, 192), fmt) == []
