# SPDX-License-Identifier: BSD-3-Clause
"""Whether a device may decode minifloats as float16."""

import pytest
import torch

from blockscale.kernels.webgpu.matmul import halves


def test_a_device_that_flushes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    download = halves.download

    def flushing(*args) -> torch.Tensor:
        found = download(*args)
        return torch.where(found.abs() < 2.0**-14, torch.zeros(()), found)

    monkeypatch.setattr(halves, "download", flushing)
    assert not halves.widened_exactly.__wrapped__()


def test_the_answer_is_kept() -> None:
    assert halves.widened_exactly() is halves.widened_exactly()
