# SPDX-License-Identifier: BSD-3-Clause
"""Weights as words, and the factors that their outputs' sums get."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.matmul.weight import Weight, as_words, output_factors, scale_stride
from tests.support.cuda_equal import DEVICE
from tests.support.cuda_matmul_exact import stored


def test_words() -> None:
    """The same memory, little end first; None where rows or their beginnings are no words."""
    codes = torch.arange(40, dtype=torch.uint8).reshape(5, 8)
    words = as_words(codes)
    assert words is not None
    assert words.tolist()[0] == [0x03020100, 0x07060504]
    assert words.data_ptr() == codes.data_ptr()
    wide = torch.zeros(5, 12, dtype=torch.uint8)
    assert as_words(wide[:, 4:]) is not None
    assert as_words(wide[:, 2:10]) is None  # begins between words
    assert as_words(wide[:, :10]) is None  # ends between words
    assert as_words(torch.zeros(5, 10, dtype=torch.uint8)[:, :8]) is None  # rows that are none
    assert as_words(codes.t().contiguous().t()) is None


@pytest.mark.parametrize(
    ("name", "values", "stride"),
    [
        ("int8:channel0:fp32", "steps", 1), ("int8:tensor:fp32", "steps", 0),
        ("int8:tile2x64:fp32", "steps", 1), ("mxfp4", "none", 0), ("int4:group32:fp32", "none", 0),
        ("nvfp4", "outer", 0), ("e4m3:token:e8m0/floor", "steps", 1),
    ],
)  # fmt: skip
def test_factors_of_outputs(name: str, values: str, stride: int) -> None:
    """What of the scales is not in the codes or the sums of blocks, for each output."""
    fmt, k = str(parse(name)), 64
    w = torch.randn(6, k, device=DEVICE)
    weight, r = Weight(*stored(w, fmt)), reading(fmt, k)
    factors = output_factors(weight, fmt, r)
    assert factors.stride == stride
    if values == "none":
        assert factors.values is None
    elif values == "outer":
        assert factors.values is weight.outer
    else:
        steps = weight.scale.float() if "e8m0" not in fmt else 2.0 ** (weight.scale.float() - 127)
        if "e8m0" in fmt:
            steps = steps / 2.0 ** parse(fmt).fraction_bits
        expected = steps.repeat_interleave(6 // steps.shape[0], 0).reshape(-1)
        assert torch.equal(factors.values.expand(6), expected)


def test_one_row_of_scales_has_no_stride() -> None:
    codes = torch.zeros(4, 8, dtype=torch.uint8)
    for rows, stride in ((1, 0), (4, 3)):
        assert scale_stride(Weight(codes, torch.ones(rows, 3), None, None)) == stride
