# SPDX-License-Identifier: BSD-3-Clause
"""tests/conftest.py: each test begins with the threads that torch had when tests were collected."""

import pytest
import torch

THREADS = torch.get_num_threads()


@pytest.mark.parametrize("time", ["once", "again"])
def test_those_that_a_test_sets_end_with_it(time: str) -> None:
    assert torch.get_num_threads() == THREADS, time
    torch.set_num_threads(THREADS + 1)
