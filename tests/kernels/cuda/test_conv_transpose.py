# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions have no kernel here: the reference runs, and says so."""

import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.kernels import registry
from blockscale.kernels.registry import KERNELS, use
from tests.support.cuda_equal import DEVICE


@pytest.fixture(autouse=True)
def _here() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)


@pytest.mark.parametrize("fmt", ["int8:channel0:fp32", "nvfp4", "int4:group32:fp32"])
def test_none_runs_it(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor in formats that kernels know only restated."""
    model = nn.Sequential(nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2)).to(DEVICE)
    bs.quantize_(model, bs.Recipe(fmt, "int8_token"))
    x = torch.randn(2, 8, 5, 5, device=DEVICE)
    with use("cuda"), pytest.raises(RuntimeError, match="no cuda kernel runs conv_transpose"):
        model(x)
    monkeypatch.setattr(registry, "_warned", set())
    with use("reference"):
        expected = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with use("cuda", fallback=True):
            found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert all(
        not kernel.supports((bs.parse(fmt),), ()) for kernel in KERNELS["conv_transpose", "cuda"]
    )
