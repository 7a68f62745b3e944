# SPDX-License-Identifier: BSD-3-Clause
"""Rows by their numbers and tensors one after the other, of any dtype."""

import pytest
import torch
import torch.nn.functional as F

DTYPES = [torch.float32, torch.float16, torch.uint8, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_rows(dtype: torch.dtype, index: torch.dtype, device: torch.device) -> None:
    table = (torch.randn(11, 7) * 20).abs().to(dtype)
    indices = torch.tensor([[3, 0, 10], [3, 3, 5]], dtype=index)
    on, at = table.to(device), indices.to(device)
    assert torch.equal(F.embedding(at, on).cpu(), F.embedding(indices, table))
    assert torch.equal(
        F.embedding(at[:, ::2], on[:, 1:6]).cpu(), F.embedding(indices[:, ::2], table[:, 1:6])
    )
    for dim in (0, 1, -1):
        found = on.index_select(dim, at[1])
        assert torch.equal(found.cpu(), table.index_select(dim, indices[1]))


@pytest.mark.parametrize("wrong", [[0, 11], [-1, 0]], ids=str)
def test_rows_that_are_not_there(wrong: list[int], device: torch.device) -> None:
    table = torch.randn(11, 7, device="cpu").to(device)
    with pytest.raises(IndexError, match="are out of range for 11 rows"):
        F.embedding(torch.tensor(wrong).to(device), table)
    assert table.sum().item() == pytest.approx(table.cpu().sum().item(), abs=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat_and_stack(dtype: torch.dtype, device: torch.device) -> None:
    x, y = (torch.randn(5, 3) * 20).abs().to(dtype), torch.ones(5, 4).to(dtype)
    on, other = x.to(device), y.to(device)
    assert torch.equal(torch.cat([on, other], 1).cpu(), torch.cat([x, y], 1))
    assert torch.equal(torch.cat([on, other.T[:2, :3]], 0).cpu(), torch.cat([x, y.T[:2, :3]], 0))
    assert torch.equal(torch.cat([on, torch.zeros(0, device=device).to(dtype)]).cpu(), x)
    for dim in (0, 1, -1):
        assert torch.equal(torch.stack([on, on], dim).cpu(), torch.stack([x, x], dim))


def test_cat_of_different_dtypes_and_shapes(device: torch.device) -> None:
    x, y = torch.randn(3, 2), torch.randn(3, 2).half()
    found = torch.cat([x.to(device), y.to(device)])
    assert torch.equal(found.cpu(), torch.cat([x, y]))
    with pytest.raises(RuntimeError, match=r"cat along 0: \(3, 1\) does not match \(3, 2\)"):
        torch.cat([x.to(device), x[:, :1].to(device)], 0)
