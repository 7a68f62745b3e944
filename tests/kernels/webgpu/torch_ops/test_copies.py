# SPDX-License-Identifier: BSD-3-Clause
"""Bytes go to the device, between views and back, whatever they mean; dtypes change as torch's."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.copies import (
    addresses,
    broadcast,
    gather,
    is_all,
    joint,
    merged,
    read,
    send,
    words,
)
from tests.kernels.webgpu.torch_ops.numbers import FLOATS, hard, same

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64,
]  # fmt: skip


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 50).to(dtype)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_there_and_back(dtype: torch.dtype, device: torch.device) -> None:
    for shape in [(), (0,), (1,), (3,), (5, 7), (2, 3, 4, 5)]:
        x = some(dtype, *shape)
        on = x.to(device)
        assert on.device.type == "webgpu"
        assert on.dtype == dtype
        assert torch.equal(on.cpu(), x)
        assert torch.equal(on.clone().cpu(), x)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_become_contiguous(dtype: torch.dtype, device: torch.device) -> None:
    x = some(dtype, 5, 6, 7)
    on = x.to(device)
    cuts = [
        lambda t: t.transpose(0, 2), lambda t: t[1:, ::2, 3], lambda t: t.permute(1, 2, 0)[2:],
        lambda t: t[:1].expand(4, 6, 7), lambda t: t.reshape(-1)[3:], lambda t: t[..., -1:],
    ]  # fmt: skip
    for cut in cuts:
        assert torch.equal(cut(on).contiguous().cpu(), cut(x))
        assert torch.equal(cut(on).cpu(), cut(x))


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writing_into_views(dtype: torch.dtype, device: torch.device) -> None:
    x, y = some(dtype, 5, 6, 7), some(dtype, 6, 3)
    on, other = x.to(device), y.to(device)
    on[1:, :, 1:6:2] = other
    x[1:, :, 1:6:2] = y
    on[0] = on[2]  # from the same memory
    x[0] = x[2].clone()
    on.transpose(0, 1)[3, 1] = y[0, 0]
    x.transpose(0, 1)[3, 1] = y[0, 0]
    assert torch.equal(on.cpu(), x)


def test_writing_to_the_cpu_and_all_of_a_tensor(device: torch.device) -> None:
    x, y = torch.randn(4, 5), torch.zeros(4, 5, dtype=torch.float16)
    on = x.to(device)
    assert torch.equal(y.copy_(on), x.half())
    views = on.view(20), on.T
    on.copy_(y * 2)
    assert all(
        torch.equal(v.cpu().reshape(-1).sort()[0], (x.half() * 2).float().reshape(-1).sort()[0])
        for v in views
    )
    on.T.copy_(torch.ones(5, 4, device=device))
    assert torch.equal(on.cpu(), torch.ones(4, 5))


@pytest.mark.some(3)
@pytest.mark.parametrize(("a", "b"), [*itertools.product(FLOATS, FLOATS)], ids=str)
def test_casts_between_floats(a: torch.dtype, b: torch.dtype, device: torch.device) -> None:
    x = hard(a)
    assert same(x.to(device).to(b), x.to(b))
    assert same(x.to(device)[1::3].to(b), x[1::3].to(b))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "b", [*FLOATS, torch.float64, torch.int64, torch.int32, torch.bool], ids=str
)
@pytest.mark.parametrize("a", [torch.bool, torch.uint8, torch.int64, torch.float32], ids=str)
def test_other_casts(a: torch.dtype, b: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(9, 3) * 30).abs().to(a)
    assert same(x.to(device).to(b), x.to(b))
    assert same(x.to(device).T.to(b), x.T.to(b))


def test_random_copies_of_many_dimensions(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(40):
        rank = int(torch.randint(1, 7, (), generator=generator))
        shape = torch.randint(1, 5, (rank,), generator=generator).tolist()
        order = torch.randperm(rank, generator=generator).tolist()
        x = torch.randint(-100, 100, shape, generator=generator, dtype=torch.int16)
        on, cut = x.to(device), tuple(slice(int(i % n), None) for i, n in enumerate(shape))
        assert torch.equal(on.permute(order).contiguous().cpu(), x.permute(order).contiguous())
        assert torch.equal(on[cut].contiguous().cpu(), x[cut])


def test_memory_is_not_shared_by_copies(device: torch.device) -> None:
    on = torch.ones(8, device=device)
    copy = on.clone()
    on.zero_()
    assert copy.cpu().sum() == 8
    assert isinstance(on, WebGPUTensor)
    assert is_all(on)
    assert not is_all(on[1:])  # type: ignore[arg-type]
    assert gather(on).memory is not on.memory


def test_words_and_reading(device: torch.device) -> None:
    del device
    assert words(send(torch.ones(1))) == 1
    assert words(send(torch.ones(0))) == 0
    assert words(send(torch.ones(1025, dtype=torch.uint8))) == 2
    assert read(send(torch.arange(5))).tolist() == [0, 1, 2, 3, 4]
    assert send(torch.tensor(2.5)).item() == 2.5


def test_merged() -> None:
    assert merged((2, 3, 4), [(12, 4, 1)]) == [(24, 1)]
    assert merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == [(2, 12, 0), (12, 1, 1)]
    assert merged((2, 3, 4), [(1, 2, 6)]) == [(2, 1), (3, 2), (4, 6)]
    assert merged((1, 5, 1), [(9, 2, 7)]) == [(5, 2)]
    assert merged((), [()]) == []


def test_broadcast() -> None:
    assert broadcast((2, 3, 4), (3, 1), (5, 1)) == (0, 5, 0)
    assert broadcast((2,), (), ()) == (0,)


def test_joint() -> None:
    shapes = [(), (1,), (3,), (4, 1), (2, 1, 3), (2, 4, 1), (0,), (1, 1, 1, 1), (4, 0)]
    for a in shapes:
        for b in shapes:
            for c in ((), (1, 3)):
                try:
                    expected = tuple(torch.broadcast_shapes(a, b, c))
                except RuntimeError:
                    with pytest.raises(
                        RuntimeError, match="cannot be broadcast: sizes must be equal, or 1"
                    ):
                        joint(a, b, c)
                else:
                    assert joint(a, b, c) == expected


def test_straight_only_where_all_lies_alike(device: torch.device) -> None:
    del device
    x = send(torch.ones(4, 6))
    assert addresses((4, 6), [x, x]).address == "straight"
    assert addresses((4, 6), [x], always=True).address == "strided"
    assert addresses((2, 4, 6), [x]).address == "strided"
    assert addresses((6, 4), [x.T]).address == "strided"  # type: ignore[list-item]
    assert addresses((3, 6), [x[1:]]).constants == (("OPERANDS", 1),)  # type: ignore[list-item]


def test_the_same_geometry_is_uploaded_once(device: torch.device) -> None:
    del device
    x, y = send(torch.ones(4, 6)), send(torch.ones(4, 6))
    first = addresses((6, 4), [x.T]).buffers["geometry"]  # type: ignore[list-item]
    assert addresses((6, 4), [y.T]).buffers["geometry"] is first  # type: ignore[list-item]


DTYPES_of_indexing = [torch.float32, torch.float16, torch.uint8, torch.int64]


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", DTYPES_of_indexing, ids=str)
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


@pytest.mark.parametrize("dtype", DTYPES_of_indexing, ids=str)
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
