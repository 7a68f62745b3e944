# SPDX-License-Identifier: BSD-3-Clause
"""When the kernels for Hopper run: the GPU, the Triton, the environment, and where codes lie."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.matmul import hopper


@pytest.mark.parametrize(
    ("capability", "version", "wish", "found", "warns"),
    [
        ((9, 0), "3.6.0", "", "", False),
        ((9, 0), "3.6.1", "0", "BLOCKSCALE_GLUON", False),
        ((9, 0), "3.99.0", "", "Triton 3.99", True),
        ((9, 0), "3.99.0", "1", "", False),
        ((9, 0), "3.99.0", "0", "BLOCKSCALE_GLUON", False),
        ((8, 0), "3.99.0", "1", "capability 8.0", False),
    ],
)
def test_where_it_runs(capability, version, wish, found, warns, monkeypatch):
    """An unknown Triton is named once, with what to do; nothing else says a word."""
    monkeypatch.setattr(hopper, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(hopper.triton, "__version__", version)
    monkeypatch.setenv("BLOCKSCALE_GLUON", wish)
    hopper.unusable.cache_clear()
    try:
        if warns:
            with pytest.warns(UserWarning, match="BLOCKSCALE_GLUON=1"):
                reason = hopper.unusable(0)
        else:
            reason = hopper.unusable(0)
        assert (reason is None) == (not found)
        assert reason is None or found in reason
        hopper.unusable(0)  # says nothing again
    finally:
        hopper.unusable.cache_clear()


@pytest.mark.parametrize("wish", ["2", "yes", "true", " 1", "00"])
def test_a_wish_that_says_nothing(wish, monkeypatch):
    """Neither taken for a yes nor for a no, each time, on any GPU."""
    monkeypatch.setenv("BLOCKSCALE_GLUON", wish)
    hopper.unusable.cache_clear()
    for _ in range(2):
        with pytest.raises(ValueError, match=f"BLOCKSCALE_GLUON is '{wish}': expected 1 .* or 0 "):
            hopper.unusable(0)


def test_which_codes_the_copy_engine_reads() -> None:
    """Rows that begin at multiples of 16 bytes."""
    assert hopper.readable(torch.zeros(4, 64, dtype=torch.uint8))
    assert not hopper.readable(torch.zeros(4, 72, dtype=torch.uint8))
    assert not hopper.readable(torch.zeros(4, 80, dtype=torch.uint8)[:, 4:68])
    assert not hopper.can_run(torch.zeros(4, 64, dtype=torch.uint8))  # no Hopper here
