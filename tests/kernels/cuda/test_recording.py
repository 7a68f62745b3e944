# SPDX-License-Identifier: BSD-3-Clause
"""What is recorded of a call, and what cannot be: with Triton's interpreter in the GPU's place."""

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED
from blockscale.kernels.cuda.recording import Alias, TensorMemory
from tests.kernels.cuda.replay_stand_in import (
    Counting,
    check,
    operand,
    outcomes,
    rounded,
    stored,
)
from tests.support.cuda_equal import DEVICE
from tests.support.same import same
from tests.support.set_aside import set_aside

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE != "cpu", reason="tests/gpu/test_replay.py does this on a GPU"),
]
KEPT = torch.ones(4)


def test_what_cannot_be_repeated_says_why(cuda: Callable[..., Any]) -> None:
    """Products in float32 ask torch's flags; rows of nothing; numbers that the host reads."""
    x, (codes, q) = torch.randn(2, 20), stored(torch.randn(7, 20), "int8:group5:fp32")
    call = (x, operand(codes, q, "int8:group5:fp32", 20), None, UNQUANTIZED)
    assert "mm" in check(cuda("linear"), call, call)
    nothing = rounded(torch.ones(0, 96))
    assert "empty" in check(cuda("fake_quantize"), nothing, nothing)


def test_a_kernel_that_went_another_way(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton starts past `direct` would be missing."""
    from blockscale.kernels.cuda import replay

    op, counting = counted
    run = counting.run

    def stray(*arguments: Any) -> Tensor:
        result = run(*arguments)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        return result

    monkeypatch.setattr(counting, "run", stray)
    op.recordings.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["a launch that went past `direct`"]
    assert not replay.triton.knobs.runtime.launch_enter_hook.calls


def test_an_error_while_recording_leaves_no_trace(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockscale.kernels.cuda import relaunch, replay

    op, counting = counted
    run = counting.run

    def failing(*arguments: Any) -> Tensor:
        run(*arguments)
        if counting.calls == 2:
            raise torch.OutOfMemoryError("planted")
        return run(*arguments)

    monkeypatch.setattr(counting, "run", failing)
    op.recordings.clear()
    op(*rounded(torch.randn(4, 96)))
    with pytest.raises(torch.OutOfMemoryError):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["called once"]
    assert relaunch.watch.by is None
    assert not replay.triton.knobs.runtime.launch_enter_hook.calls
    for _ in range(2):
        x = torch.randn(4, 96)
        assert same(op(*rounded(x)), run(*rounded(x)))
    assert outcomes(op) == ["Recording"]
    assert counting.calls == 3


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.new_empty(x.shape).copy_(x if x.sum().item() > 0 else -x),
        lambda x: x,
        lambda x: x[1:],
        lambda x: torch.full_like(x, 2.0).bernoulli_(0.0),
        lambda x: KEPT + x,
        lambda x: x.add_(1),
    ],
)
def test_what_no_kernel_may_do(cuda: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Look at numbers, hand back what it was given or change it, draw, use what is not its own."""
    from blockscale.kernels.cuda.replay import Replay

    op = Replay(run)
    for i in range(4):
        x = torch.full((4,), float(i))
        assert same(op(x), run(torch.full((4,), float(i))))
    assert outcomes(op) not in (["Recording"], ["called once"])


def test_memory_is_given_back_while_it_is_recorded(cuda: Callable[..., Any]) -> None:
    """Otherwise that one call would take more than there is."""
    from blockscale.kernels.cuda.replay import Replay

    alive: set[int] = set()
    most = []

    def run(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for i in range(8):
            piece = x.new_empty(64, 64).copy_(x[i].expand(64, 64))
            alive.add(i)
            weakref.finalize(piece, alive.discard, i)
            most.append(len(alive))
            y[i : i + 1].copy_(piece[0])
            del piece
        return y

    assert check(Replay(run), (torch.randn(8, 64),), (torch.randn(8, 64),)) == "Recording"
    assert max(most) == 1


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_at_once_lies_apart(seed: int) -> None:
    from blockscale.kernels.cuda.recording import Recorder, TensorMemory

    some = random.Random(seed)
    recorder, last = Recorder([]), {}
    for n in range(12):
        recorder.allocations[n] = TensorMemory((some.randrange(1, 3000),), (1,), torch.uint8)
        recorder.born[n] = n // 2
        last[n] = n // 2 + some.randrange(4)
    lent, scratch = recorder._lent({3}, last)
    assert [n for n, _ in lent] == [n for n in range(12) if n != 3]
    assert all(at % 512 == 0 and at + recorder.allocations[n].nbytes <= scratch for n, at in lent)
    for n, at in lent:
        for m, other in lent:
            if n < m and recorder.born[m] <= last[n]:
                apart = at + recorder.allocations[n].nbytes <= other
                assert apart or other + recorder.allocations[m].nbytes <= at
    assert scratch < sum(-(-each.nbytes // 512) * 512 for each in recorder.allocations.values())


def test_choices_that_are_measured_during_a_call(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided before is not kept."""
    from blockscale.kernels.cuda import replay

    op, counting = counted
    run = counting.run

    def measuring(*arguments: Any) -> Tensor:
        replay.forget()
        return run(*arguments)

    op.recordings.clear()
    op(*rounded(torch.randn(4, 96)))
    monkeypatch.setattr(counting, "run", measuring)
    op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == []


def test_what_other_threads_do_is_not_recorded(cuda: Callable[..., Any]) -> None:
    """Neither their operations nor their launches, which do not count as strays, either."""
    from blockscale.kernels.cuda import relaunch, replay

    seen = []

    def other() -> None:
        seen.append(relaunch.watch.by)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        torch.randn(3).sum().item()

    def run(x: Tensor) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return x.mul(2)

    op = replay.Replay(run)
    assert check(op, (torch.ones(4),), (torch.randn(4),)) == "Recording"
    assert set(seen) == {None}


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
    memory = TensorMemory(shape, stride, torch.float32)
    assert (memory.compact, memory.nbytes) == (compact, nbytes)
    there = torch.empty(64).as_strided(shape, stride)
    assert TensorMemory.of(there) == memory


def test_an_alias_begins_where_it_says() -> None:
    """Also as another dtype, of memory that does not begin at its storage's start."""
    whole = torch.arange(32, dtype=torch.int16)[4:]
    tensors = [whole, None]
    Alias(0, 8, TensorMemory((3, 2), (2, 1), torch.int32), 1)([], tensors, 0)
    assert torch.equal(
        tensors[1], torch.arange(32, dtype=torch.int16)[8:20].view(torch.int32).view(3, 2)
    )
    assert tensors[1].data_ptr() == whole.data_ptr() + 8


def test_operations_of_torch_are_repeated(cuda: Callable[..., Any]) -> None:
    """Also into memory of which the result is a view, and views that share it."""
    from blockscale.kernels.cuda.replay import Replay

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
    assert check(Replay(run), *calls) == "Recording"


def test_memory_is_given_back_as_in_the_call_itself(
    cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of a large weight, one after another, take no more than two at once."""
    from blockscale.kernels.cuda import recording
    from blockscale.kernels.cuda.replay import Replay

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
    assert check(Replay(run), *calls) == "Recording"
    assert len(taken) == 9
    assert most == [2]  # the result, and a piece


def test_recordings_keep_no_memory(cuda: Callable[..., Any]) -> None:
    set_aside()
    op = cuda("linear")
    op.recordings.clear()
    codes, q = stored(torch.randn(24, 128), "int4:group32:fp32")
    call = torch.randn(3, 128), operand(codes, q, "int4:group32:fp32", 128)
    for _ in range(3):
        op(*call, None, UNQUANTIZED)
    assert outcomes(op) == ["Recording"]
    gone = [weakref.ref(each) for each in (call[0], codes, q.scale)]
    del call, codes, q
    gc.collect()
    assert [each() for each in gone] == [None, None, None]
