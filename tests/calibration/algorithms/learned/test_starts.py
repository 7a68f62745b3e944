# SPDX-License-Identifier: BSD-3-Clause
"""Where learned rounding begins."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.learned.starts import start_of
from blockscale.calibration.algorithms.mse import MSE

WEIGHT = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
GRAM = torch.diag(torch.linspace(1, 4, 16)) + 0.5


@pytest.mark.parametrize(
    ("kind", "text", "gram", "expected"),
    [
        ("gptq", "int4:group8:fp32", GRAM, "gptq"),
        ("gptq", "int4:group8:fp32", None, "mse"),
        ("gptq", "int4:flat12:fp32", GRAM, "mse"),  # its blocks end within rows
        ("gptq", "int4:flat8:fp32", GRAM, "gptq"),
        ("mse", "int4:group8:fp32", GRAM, "mse"),
        ("absmax", "int4:group8:fp32", GRAM, "absmax"),
        ("gptq", "book2:group8:fp32", GRAM, "absmax"),
    ],
)
@pytest.mark.filterwarnings("ignore:no cpu kernel")
def test_starts(kind: str, text: str, gram: torch.Tensor | None, expected: str) -> None:
    fmt = bs.parse(text)
    found, _ = start_of(kind, WEIGHT, fmt, gram, "layer")
    algorithm = {"gptq": GPTQ(), "mse": MSE()}.get(expected)
    other = (
        bs.quantize(WEIGHT, fmt)
        if algorithm is None
        else algorithm.quantize(WEIGHT, fmt, gram, "layer")[0]
    )
    assert torch.equal(found.packed, other.packed)
    assert torch.equal(found.qparams.scale, other.qparams.scale)
