# SPDX-License-Identifier: BSD-3-Clause
"""Without triton these tests are skipped; without a GPU its interpreter runs the kernels, for which
tests/conftest.py sets TRITON_INTERPRET."""

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from blockscale.kernels import registry
from tests.support.interpreted import replace_once

MISSING = importlib.util.find_spec("triton") is None
UNTRIED = [
    *("test_linear*.py", "test_tables.py", "test_tune.py"),
    *("device/*", "matmul/*", "primitives/*", "replay/*"),
]
collect_ignore_glob = UNTRIED if MISSING else []  # they import kernels
if not MISSING and os.environ.get("TRITON_INTERPRET") == "1":
    replace_once()


@pytest.fixture(autouse=True, scope="package")
def _asked_again() -> None:
    """Whether there are kernels may have been asked before the environment said so."""
    if MISSING:
        pytest.skip("triton is not installed: the CUDA kernels cannot be tested")
    registry.unavailable.cache_clear()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """For the reference and for comparing: on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
