"""Which scales saturate: those whose quotient or power cannot be stored."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.layers.saturation import saturates


@pytest.mark.parametrize(
    ("spelling", "low", "high", "found"),
    [
        ("int8:tensor:fp32", 0.0, 0.0, False),
        ("int8:tensor:fp32", 0.0, 2.0**-149, True),  # its scale would be 2^-126 at least
        ("int8:tensor:fp32", -3e38, 3e38, False),
        ("int8:tensor:fp16", 0.0, 127 * 65504.0, False),
        ("int8:tensor:fp16", 0.0, 127 * 65536.0, True),
        ("int8:tensor:e8m0/floor", 0.0, 2.0**-149, True),
        ("int8:tensor:e8m0/floor", 0.0, 1.0, False),
        ("e2m1:tensor:pow2/nearest", 0.0, 2.0**-149, True),
        ("e2m1:tensor:e4m3", 0.0, 6.0, False),
        ("uint8:tensor:fp32:asym", -3e38, 3e38, False),  # the range is cut at FLT_MAX
    ],
)
def test_which_scales_cannot_be_stored(spelling: str, low: float, high: float, found: bool) -> None:
    answer = saturates(torch.tensor([low]), torch.tensor([high]), parse(spelling))
    assert answer.tolist() == [found]
