# SPDX-License-Identifier: BSD-3-Clause
"""Recordings do again what was recorded: operations of torch, and memory taken and given back."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED
from blockscale.kernels.cuda.replay.recording import Alias, Memory
from tests.kernels.cuda.replay.stand_in import check, operand, outcomes, stored
from tests.support.cuda_equal import DEVICE

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE != "cpu", reason="tests/gpu/test_replay.py does this on a GPU"),
]


@pytest.mark.parametrize(
    ("shape", "stride", "compact", "nbytes"),
    [
        ((3, 4), (4, 1), True, 48),
        ((3, 4), (1, 3), False, 48),
        ((3, 4), (8, 1), False, 80),
        ((1, 4), (99, 1), True, 16),
        ((), (), True, 4),
        ((3, 1), (0, 1), False, 4),
    ],
)
def test_what_memory_is(
    shape: tuple[int, ...], stride: tuple[int, ...], compact: bool, nbytes: int
) -> None:
    """Its bytes end with its last element; a dimension of one entry may have any stride."""
    memory = Memory(shape, stride, torch.float32)
    assert (memory.compact, memory.nbytes) == (compact, nbytes)
    there = torch.empty(64).as_strided(shape, stride)
    assert Memory.of(there) == memory


def test_an_alias_begins_where_it_says() -> None:
    """Also as another dtype, of memory that does not begin at its storage's start."""
    whole = torch.arange(32, dtype=torch.int16)[4:]
    tensors = [whole, None]
    Alias(0, 8, Memory((3, 2), (2, 1), torch.int32), 1)([], tensors, 0)
    assert torch.equal(
        tensors[1], torch.arange(32, dtype=torch.int16)[8:20].view(torch.int32).view(3, 2)
    )
    assert tensors[1].data_ptr() == whole.data_ptr() + 8


def test_operations_of_torch_are_repeated(cuda: Callable[..., Any]) -> None:
    """Also into memory of which the result is a view, and views that share it."""
    from blockscale.kernels.cuda.replay.replay import Replayed

    def run(x: Tensor, w: Tensor) -> list[Tensor]:
        y = torch.empty(6, 4, dtype=torch.bfloat16)
        torch.mm(x.view(6, 8), w.t(), out=y)
        z = torch.zeros_like(y).copy_(y[:, :1].expand(6, 4))
        halves = torch.empty(8, dtype=torch.bfloat16).copy_(z[0, 0].expand(8))
        bits = w[1:, 2:].view(torch.int16).t().to(torch.float32)
        both = torch.empty(8, dtype=torch.bfloat16).copy_(z[0, 1].expand(8).contiguous())
        zeros = torch.zeros([2, 3], dtype=torch.int32, device=x.device)
        views = [halves[4:], halves.view(2, 4)[:1], both.view(2, 4), both.view(4, 2)]
        return [y.reshape(2, 3, 4), z, bits, zeros, *views]

    calls = [(torch.randn(2, 3, 8).bfloat16(), torch.randn(4, 8).bfloat16()) for _ in range(2)]
    assert check(Replayed(run), *calls) == "Recording"


def test_memory_is_given_back_as_in_the_call_itself(
    cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of a large weight, one after another, take no more than two at once."""
    from blockscale.kernels.cuda.replay import recording
    from blockscale.kernels.cuda.replay.replay import Replayed

    def run(x: Tensor) -> Tensor:
        y = x.new_empty(x.shape)
        for i in range(8):
            piece = torch.empty(64, 64, dtype=torch.bfloat16).copy_(x[i].expand(64, 64))
            torch.mm(piece, piece.t(), out=y[i].expand(64, 64).clone()).view(-1)
            y[i : i + 1].copy_(piece[0])
        return y

    taken, take, held, most = [], recording.take, set(), [0]

    def watched(*arguments: Any) -> Tensor:
        found = take(*arguments)
        taken.append(found.shape)
        held.add(id(found))
        weakref.finalize(found, held.discard, id(found))
        most[0] = max(most[0], len(held))
        return found

    monkeypatch.setattr(recording, "take", watched)
    calls = [(torch.randn(8, 64).bfloat16(),) for _ in range(2)]
    assert check(Replayed(run), *calls) == "Recording"
    assert len(taken) == 9
    assert most == [2]  # the result, and a piece


def test_recordings_keep_no_memory(cuda: Callable[..., Any]) -> None:
    op = cuda("linear")
    op.known.clear()
    codes, q = stored(torch.randn(24, 128), "int4:group32:fp32")
    call = torch.randn(3, 128), operand(codes, q, "int4:group32:fp32", 128)
    for _ in range(3):
        op(*call, None, UNQUANTIZED)
    assert outcomes(op) == ["Recording"]
    gone = [weakref.ref(each) for each in (call[0], codes, q.scale)]
    del call, codes, q
    gc.collect()
    assert [each() for each in gone] == [None, None, None]
