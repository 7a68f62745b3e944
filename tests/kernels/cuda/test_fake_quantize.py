# SPDX-License-Identifier: BSD-3-Clause
"""Values of fake_quantize lie in memory as their input does."""

import pytest
import torch

from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_strides_of_values_follow_the_input() -> None:
    for x in (
        torch.randn(6, 40).t(),
        torch.randn(2, 8, 4).permute(2, 0, 1),
        torch.randn(8, 9)[::2],
    ):
        assert wrong(x, "int4:group4:fp32") == []
