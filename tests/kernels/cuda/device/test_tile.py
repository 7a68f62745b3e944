# SPDX-License-Identifier: BSD-3-Clause
"""Where elements and codes of a tile lie in memory."""

import pytest
import torch

from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    ["mxfp6", "nvfp4", "int4:group16:e8m0/ceil:asym", "binary:group16:e4m3", "int2:group32:fp32"],
)
def test_rows_that_fill_words(fmt: str) -> None:
    """Codes are packed as they are written; a block that is not finite holds the largest number."""
    x = torch.randn(3, 64)
    x[1, 3], x[1, 4], x[2, 40] = 1e4, torch.nan, -torch.inf
    assert wrong(x, fmt) == []
