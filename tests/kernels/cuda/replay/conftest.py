# SPDX-License-Identifier: BSD-3-Clause
"""The kernels of the CUDA backend, whose calls are recorded though there is no GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from blockscale.kernels import registry
from tests.kernels.cuda.replay.stand_in import Compiled, Counting, outcomes, rounded


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Any]:
    """A kernel of the CUDA backend by its op's name; CPU tensors count as a GPU's."""
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
    assert registry.unavailable("cuda") is None
    from blockscale.kernels.cuda.replay import direct, recording, replay

    def start(self: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        names = self.kernel.arg_names[len(arguments) :]
        rest = [named.pop(name) for name in names]
        with _disable_current_modes():  # the interpreter itself uses tensors
            self.kernel[grid](*arguments, *rest, **named)
        replay.triton.knobs.runtime.launch_enter_hook(None)  # as Triton does where it compiles
        if direct.watch.by is not None:
            every = (*arguments, *rest)
            compiled = Compiled(self.kernel, named, every)
            direct.watch.by.launched(compiled, (*grid, 1, 1)[:3], every)

    def take(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = torch.empty_strided(shape, stride, dtype=dtype)
        found.untyped_storage().fill_(0x5A)  # nobody may count on zeros
        return found

    monkeypatch.setattr(direct.Direct, "_start", start)
    monkeypatch.setattr(recording, "take", take)
    monkeypatch.setattr(recording, "current_device", lambda: 0)
    monkeypatch.setattr(recording, "current_stream", lambda device: 7)
    monkeypatch.setattr(Tensor, "get_device", lambda tensor: 0)
    replay.forget()
    yield lambda name: registry.KERNELS[name, "cuda"][-1].run
    replay.forget()


@pytest.fixture
def counted(cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Counting]:
    """fake_quantize, whose calls with [4, 96] float32 are recorded, and its function."""
    op = cuda("fake_quantize")
    op.known.clear()
    for _ in range(2):
        op(*rounded(torch.randn(4, 96)))
    assert outcomes(op) == ["Recording"]
    counting = Counting(op.run)
    monkeypatch.setattr(op, "run", counting)
    return op, counting
