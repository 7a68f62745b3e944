"""Scales in cuBLAS' tiles, by the formula of its documentation for each element."""

import pytest
import torch

from blockscale.export.checkpoints.layouts.torchao.swizzled import count, matrix


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (64, 4), (130, 9), (300, 5)])
def test_each_place(rows, columns):
    wide = -(-columns // 4)
    stored = torch.zeros(count(rows, columns), dtype=torch.int32)
    for r in range(rows):
        for c in range(columns):
            tile = r // 128 * wide + c // 4
            at = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            stored[at] = r * 1000 + c
    expected = (torch.arange(rows)[:, None] * 1000 + torch.arange(columns)) % 251
    found = matrix((stored % 251).to(torch.uint8).reshape(-1, 16), rows, columns)
    assert torch.equal(found.int(), expected.int())


def test_another_number():
    with pytest.raises(ValueError, match="it has 100 scales in tiles, and 5 x 4 take 512"):
        matrix(torch.zeros(100, dtype=torch.uint8), 5, 4)
