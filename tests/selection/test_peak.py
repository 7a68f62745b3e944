# SPDX-License-Identifier: BSD-3-Clause
"""The memory of a call, where it is known by counting."""

import pytest
import torch

from blockscale.selection.peak import peak

MIB = 1 << 20


def test_the_result_alone():
    assert peak(lambda: torch.empty(MIB, dtype=torch.uint8), "cpu") == MIB


def test_temporaries_count_while_they_are_there():
    def call():
        first = torch.empty(3 * MIB, dtype=torch.uint8)
        del first
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        return torch.empty(MIB // 2, dtype=torch.uint8), second

    assert peak(call, "cpu") == 3 * MIB


def test_what_was_there_before_does_not_count():
    kept = torch.empty(5 * MIB, dtype=torch.uint8)
    assert peak(lambda: kept[:10], "cpu") == 0


def test_an_error_comes_through(capfd):
    with pytest.raises(ZeroDivisionError):
        peak(lambda: 1 // 0, "cpu")
