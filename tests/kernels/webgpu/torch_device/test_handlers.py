# SPDX-License-Identifier: BSD-3-Clause
"""Ops find their handlers by overload; tensors of other devices are refused."""

import pytest
import torch

from blockscale.kernels.webgpu.torch_device import handlers
from blockscale.kernels.webgpu.torch_device.handlers import HANDLERS, handles


def test_handlers_are_registered_for_overloads(device: torch.device) -> None:
    del device
    aten = torch.ops.aten
    for op in (aten.add.Tensor, aten.relu_.default, aten.mm.default, aten._softmax.default):
        assert op in HANDLERS


def test_names_that_this_torch_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "HANDLERS", {})

    @handles("no_such_op.default", "add.no_such_overload", "neg.default")
    def handler() -> None: ...

    assert {torch.ops.aten.neg.default: handler} == handlers.HANDLERS


def test_not_implemented_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.neg.default
    monkeypatch.setitem(HANDLERS, op, lambda x: NotImplemented)
    monkeypatch.setattr(handlers, "_rest", [lambda op, args, kwargs: (op, args, kwargs)])
    assert handlers.run(op, (1,), {}) == (op, (1,), {})


def test_tensors_elsewhere_are_refused(device: torch.device) -> None:
    on, there = torch.ones(3, device=device), torch.ones(3)
    for wrong in (
        lambda: on + there, lambda: there * on, lambda: torch.cat([on, there]),
        lambda: torch.where(on > 0, on, there), lambda: there.expand(3, 3) @ on.expand(3, 3),
        lambda: on.add_(there),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"(?i)device|on webgpu"):
            wrong()
    assert torch.equal(on.cpu(), there)
    assert (on + torch.tensor(2.0)).sum().item() == 9  # a number may be anywhere
