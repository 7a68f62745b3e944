# SPDX-License-Identifier: BSD-3-Clause
"""Torch's ops on the device webgpu. Without an adapter these tests are skipped."""

import warnings

import pytest
import torch

from blockscale.kernels.webgpu import available, webgpu
from blockscale.kernels.webgpu.torch_ops import factories


@pytest.fixture(scope="package")
def opened() -> torch.device:
    reason = available()
    if reason is not None:
        pytest.skip(f"torch's device webgpu is NOT tested: {reason}")
    with warnings.catch_warnings(action="ignore"):  # that the adapter is software
        return webgpu()


@pytest.fixture(autouse=True)
def device(opened: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device. Warnings are errors, so what a test runs has a kernel unless it says so."""
    monkeypatch.setattr(factories, "_warned", set())
    return opened
