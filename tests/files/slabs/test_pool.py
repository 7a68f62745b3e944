# SPDX-License-Identifier: BSD-3-Clause
"""Threads for slabs keep order, errors and the chosen backend."""

import pytest
import torch

from blockscale.files.slabs.pool import Pool
from blockscale.kernels.registry import choice, use


def test_a_pool_keeps_to_a_backend():
    with Pool() as pool:
        assert list(pool.map(lambda item: choice().backend, range(3))) == ["auto"] * 3
        with use("reference"):
            assert list(pool.map(lambda item: choice().backend, range(3))) == ["reference"] * 3


def test_a_pool_keeps_order_and_passes_errors_on():
    torch.set_num_threads(2)
    begun = []

    def work(item):
        begun.append(item)
        if item == 7:
            raise ValueError("seven")
        return -item

    with Pool() as pool:
        assert list(pool.map(work, range(5))) == [0, -1, -2, -3, -4]
        with pytest.raises(ValueError, match="seven"):
            list(pool.map(work, range(1000)))
        assert max(begun) < 20  # it runs ahead by a few
