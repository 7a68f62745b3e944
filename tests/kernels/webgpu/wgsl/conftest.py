"""Parts of shaders run by themselves. Without an adapter these tests are skipped."""

import warnings

import pytest

from blockscale.kernels.webgpu import available


@pytest.fixture(autouse=True, scope="package")
def _adapter() -> None:
    reason = available()
    if reason is not None:
        pytest.skip(f"the parts of WGSL are NOT tested: {reason}")
    from blockscale.kernels.webgpu.gpu.device import gpu

    with warnings.catch_warnings(action="ignore"):  # that the adapter is software
        gpu()


@pytest.fixture(params=["plain", "flushing"])
def hardware(request: pytest.FixtureRequest) -> str:
    """The device as it is, and as one that flushes subnormals and divides badly."""
    return str(request.param)
