# SPDX-License-Identifier: BSD-3-Clause
"""Rates: what is measured, never how much."""

import pytest
import torch

from blockscale.kernels import rates as module
from blockscale.kernels.registry import unavailable


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "COPIED", 1 << 10)
    monkeypatch.setattr(module, "SIZE", 64)
    monkeypatch.setattr(module, "_ROUNDS", 3)


def test_units(small, monkeypatch):
    """A second for everything: rates are then the bytes and the operations."""
    monkeypatch.setattr(module, "_seconds", lambda run, device: run() is None or 1.0)
    found = module.rates("cpu")
    assert found.device == "cpu"
    assert found.copy == 2 << 10
    assert found.float32 == found.bfloat16 == 2 * 64**3
    assert found.int8 == (None if unavailable("cpu") else 2 * 64**3)


def test_what_is_timed_is_the_product(small):
    if unavailable("cpu") is not None:
        pytest.skip(str(unavailable("cpu")))
    torch.manual_seed(0)
    x, weight = torch.randn(64, 64), torch.randn(64, 64)
    product = module._int8(x, weight, "cpu")()
    assert torch.nn.functional.cosine_similarity(product, x @ weight.T).min() > 0.999
    assert module._int8(x, weight, "no such backend") is None


def test_medians(small, monkeypatch):
    clock = iter([0.0, 1.0, 0.0, 5.0, 0.0, 2.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    calls = []
    assert module._seconds(lambda: calls.append(1), "cpu") == 2.0
    assert len(calls) == 4


def test_other_devices():
    with pytest.raises(ValueError, match="no rates of device 'webgpu'"):
        module.rates("webgpu")
