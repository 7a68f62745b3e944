# SPDX-License-Identifier: BSD-3-Clause
"""Without the library its tests are left out; tests/kernels/test_build.py then fails."""

from collections.abc import Iterator

import pytest
import torch

from blockscale.kernels.cpu import load

native = load()
collect_ignore_glob = ["test_*.py"] if isinstance(native, str) else []
ISAS = [] if isinstance(native, str) else native.isas()


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this processor in turn."""
    before = native.isa()
    native.select_isa(request.param)
    yield request.param
    native.select_isa(before)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """For the reference and for comparing: on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
