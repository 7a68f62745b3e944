# SPDX-License-Identifier: BSD-3-Clause
"""What is recorded of a call, and what cannot be: with Triton's interpreter in the GPU's place."""

import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED
from tests.kernels.cuda.replay.stand_in import (
    Counting,
    check,
    operand,
    outcomes,
    rounded,
    stored,
)
from tests.support.cuda_equal import DEVICE
from tests.support.same import same

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
    from blockscale.kernels.cuda.replay import replay

    op, counting = counted
    run = counting.run

    def stray(*arguments: Any) -> Tensor:
        result = run(*arguments)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        return result

    monkeypatch.setattr(counting, "run", stray)
    op.known.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["a launch that went past `direct`"]
    assert not replay.triton.knobs.runtime.launch_enter_hook.calls


def test_an_error_while_recording_leaves_no_trace(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockscale.kernels.cuda.replay import direct, replay

    op, counting = counted
    run = counting.run

    def failing(*arguments: Any) -> Tensor:
        run(*arguments)
        if counting.calls == 2:
            raise torch.OutOfMemoryError("planted")
        return run(*arguments)

    monkeypatch.setattr(counting, "run", failing)
    op.known.clear()
    op(*rounded(torch.randn(4, 96)))
    with pytest.raises(torch.OutOfMemoryError):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["called once"]
    assert direct.watch.by is None
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
    from blockscale.kernels.cuda.replay.replay import Replayed

    op = Replayed(run)
    for i in range(4):
        x = torch.full((4,), float(i))
        assert same(op(x), run(torch.full((4,), float(i))))
    assert outcomes(op) not in (["Recording"], ["called once"])


def test_memory_is_given_back_while_it_is_recorded(cuda: Callable[..., Any]) -> None:
    """Otherwise that one call would take more than there is."""
    from blockscale.kernels.cuda.replay.replay import Replayed

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

    assert check(Replayed(run), (torch.randn(8, 64),), (torch.randn(8, 64),)) == "Recording"
    assert max(most) == 1


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_at_once_lies_apart(seed: int) -> None:
    from blockscale.kernels.cuda.replay.recorder import Recorder
    from blockscale.kernels.cuda.replay.recording import Memory

    some = random.Random(seed)
    recorder, last = Recorder([]), {}
    for n in range(12):
        recorder.made[n] = Memory((some.randrange(1, 3000),), (1,), torch.uint8)
        recorder.born[n] = n // 2
        last[n] = n // 2 + some.randrange(4)
    lent, scratch = recorder._lent({3}, last)
    assert [n for n, _ in lent] == [n for n in range(12) if n != 3]
    assert all(at % 512 == 0 and at + recorder.made[n].nbytes <= scratch for n, at in lent)
    for n, at in lent:
        for m, other in lent:
            if n < m and recorder.born[m] <= last[n]:
                apart = at + recorder.made[n].nbytes <= other
                assert apart or other + recorder.made[m].nbytes <= at
    assert scratch < sum(-(-each.nbytes // 512) * 512 for each in recorder.made.values())


def test_choices_that_are_measured_during_a_call(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided before is not kept."""
    from blockscale.kernels.cuda.replay import replay

    op, counting = counted
    run = counting.run

    def measuring(*arguments: Any) -> Tensor:
        replay.forget()
        return run(*arguments)

    op.known.clear()
    op(*rounded(torch.randn(4, 96)))
    monkeypatch.setattr(counting, "run", measuring)
    op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == []


def test_what_other_threads_do_is_not_recorded(cuda: Callable[..., Any]) -> None:
    """Neither their operations nor their launches, which do not count as strays, either."""
    from blockscale.kernels.cuda.replay import direct, replay

    seen = []

    def other() -> None:
        seen.append(direct.watch.by)
        replay.triton.knobs.runtime.launch_enter_hook(None)
        torch.randn(3).sum().item()

    def run(x: Tensor) -> Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return x.mul(2)

    op = replay.Replayed(run)
    assert check(op, (torch.ones(4),), (torch.randn(4),)) == "Recording"
    assert set(seen) == {None}
