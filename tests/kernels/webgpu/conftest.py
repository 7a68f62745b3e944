# SPDX-License-Identifier: BSD-3-Clause
"""Without an adapter these tests are skipped, loudly; Mesa's lavapipe is one, in software."""

import importlib.util
import warnings
from collections.abc import Iterator

import pytest
import torch

from blockscale.kernels import registry

MISSING = (
    "wgpu is not installed: `pip install wgpu`"
    if importlib.util.find_spec("wgpu") is None
    else registry.unavailable("webgpu")
)
# these import wgpu's names, or kernels that load with it
collect_ignore_glob = ["test_*.py", "*/test_*.py"] if MISSING else []
if MISSING:
    warnings.warn(f"NO WEBGPU KERNEL IS TESTED: {MISSING}", stacklevel=1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """For the reference and for comparing: on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Software adapters, whose floats are exact, compute as GPUs do (gpu/probe.py)."""
    monkeypatch.setenv("BLOCKSCALE_WEBGPU_ARITHMETIC", "integers")


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    """Lavapipe's pipelines take megabytes each, and no module of tests needs another's."""
    yield
    if not MISSING:
        from blockscale.kernels.webgpu.gpu.launch import pipeline_of

        pipeline_of.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def _software() -> None:
    """The device says once that it is software; that is no news here."""
    if not MISSING:
        from blockscale.kernels.webgpu.gpu.device import gpu

        with warnings.catch_warnings(action="ignore"):
            gpu()
