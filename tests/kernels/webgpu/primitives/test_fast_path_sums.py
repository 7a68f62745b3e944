# SPDX-License-Identifier: BSD-3-Clause
"""Devices that leave out sums are found, and it is said once."""

from collections.abc import Iterator

import pytest
import torch

from blockscale.kernels.webgpu.primitives import fast_path, form


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    fast_path.refusal.cache_clear()
    yield
    fast_path.refusal.cache_clear()


def test_lavapipe_adds_what_it_is_told_to() -> None:
    assert fast_path.refusal() is None


def test_without_sums_nothing_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "rounded", lambda x, fmt: x)
    with pytest.warns(UserWarning, match="leaves out sums .* round to int8, e4m3"):
        reason = fast_path.refusal()
    assert reason is not None and fast_path.refusal() == reason  # a second warning is an error


@pytest.mark.parametrize("hardware", ["plain", "flushing"])
def test_what_is_flushed_is_rounded_up_at_random(
    hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe draws 0: everything above 0 goes up, subnormal numbers, too."""
    monkeypatch.setattr(form, "HARDWARE", hardware)
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 2.0**-127, 2.0**-126, 1e-30, 0.25, 2.0, -2.5, 127.0,
                      -127.5, 3.0, 1 + 2.0**-23, 5.0, -4.5])  # fmt: skip
    whole = torch.copysign(x.abs().ceil(), x).clamp(-127, 127)
    found = fast_path.rounded(x, "int8:group4:e8m0/floor:stochastic")
    assert torch.equal(found, whole)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    up = values[torch.searchsorted(values, x.abs().clamp(max=6))]
    found = fast_path.rounded(x, "e2m1:group4:e8m0/floor:stochastic")
    assert torch.equal(found, torch.copysign(up, x))
