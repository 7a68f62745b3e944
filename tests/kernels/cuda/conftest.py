# SPDX-License-Identifier: BSD-3-Clause
"""Without triton these tests are skipped; without a GPU its interpreter runs the kernels, for which
tests/conftest.py sets TRITON_INTERPRET."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from blockscale.kernels import registry
from tests.support.interpreted import replace_once

MISSING = importlib.util.find_spec("triton") is None
UNTRIED = [
    *("test_linear*.py", "test_recording.py", "test_relaunch.py", "test_replay.py"),
    *("test_tables.py", "test_tune.py"),
    *("device/*", "matmul/*", "primitives/*"),
]
collect_ignore_glob = UNTRIED if MISSING else []  # they import kernels
if not MISSING and os.environ.get("TRITON_INTERPRET") == "1":
    replace_once()


@pytest.fixture(autouse=True, scope="package")
def _asked_again() -> None:
    """Whether there are kernels may have been asked before the environment said so."""
    if MISSING:
        pytest.skip("triton is not installed: the CUDA kernels cannot be tested")
    registry.unavailable.cache_clear()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """For the reference and for comparing: on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Replays


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Any]:
    """A kernel of the CUDA backend by its op's name; CPU tensors count as a GPU's."""
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
    assert registry.unavailable("cuda") is None
    from blockscale.kernels.cuda import recording, relaunch, replay
    from tests.kernels.cuda.replay_stand_in import Compiled

    def start(self: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        names = self.kernel.arg_names[len(arguments) :]
        rest = [named.pop(name) for name in names]
        with _disable_current_modes():  # the interpreter itself uses tensors
            self.kernel[grid](*arguments, *rest, **named)
        replay.triton.knobs.runtime.launch_enter_hook(None)  # as Triton does where it compiles
        if relaunch.watch.by is not None:
            every = (*arguments, *rest)
            compiled = Compiled(self.kernel, named, every)
            relaunch.watch.by.after_launch(compiled, (*grid, 1, 1)[:3], every)

    def take(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = torch.empty_strided(shape, stride, dtype=dtype)
        found.untyped_storage().fill_(0x5A)  # nobody may count on zeros
        return found

    monkeypatch.setattr(relaunch.Direct, "_start", start)
    monkeypatch.setattr(recording, "take", take)
    monkeypatch.setattr(recording, "current_device", lambda: 0)
    monkeypatch.setattr(recording, "current_stream", lambda device: 7)
    monkeypatch.setattr(Tensor, "get_device", lambda tensor: 0)
    replay.forget()
    yield lambda name: registry.KERNELS[name, "cuda"][-1].run
    replay.forget()


@pytest.fixture
def counted(cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """fake_quantize, whose calls with [4, 96] float32 are recorded, and its function."""
    from tests.kernels.cuda.replay_stand_in import Counting, outcomes, rounded

    op = cuda("fake_quantize")
    op.recordings.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["Recording"]
    counting = Counting(op.run)
    monkeypatch.setattr(op, "run", counting)
    return op, counting
