# SPDX-License-Identifier: BSD-3-Clause
"""A copy is the ceiling of all that moves bytes: it moves every byte, in threads too."""

import pytest
import torch

from blockscale.bench.copying import _in_threads, copies


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 64, 65, 1000, 4096])
def test_threads_copy_every_byte(size, threads):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = torch.zeros(size + 1, dtype=torch.uint8)
    _in_threads(target[:size], source, threads)()
    assert torch.equal(target[:size], source)
    assert target[size] == 0


def test_copies_move_half_of_their_bytes_twice():
    found = copies(4096, "cpu")
    assert [each.name for each in found] == ["copy: torch", "copy: memcpy in threads"]
    assert {each.bytes for each in found} == {4096}
    assert found[0].call().numel() == 2048
    assert [each.name for each in copies(4096, "meta")] == ["copy: torch"]
