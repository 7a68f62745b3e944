# SPDX-License-Identifier: BSD-3-Clause
"""Ops find their handlers by overload; tensors of other devices are refused."""

import copy
import io
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load, save
from torch import nn

from blockscale.kernels.webgpu import torch_device
from blockscale.kernels.webgpu.gpu import memory
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.memory import upload
from blockscale.kernels.webgpu.torch_device import (
    HANDLERS,
    WebGPUTensor,
    handles,
    is_whole,
    on_gpu,
    rows,
    wrap_memory,
)
from tests.kernels.webgpu.torch_ops.conftest import device as device
from tests.kernels.webgpu.torch_ops.conftest import opened as opened


def test_handlers_are_registered_for_overloads(device: torch.device) -> None:
    del device
    aten = torch.ops.aten
    for op in (aten.add.Tensor, aten.relu_.default, aten.mm.default, aten._softmax.default):
        assert op in HANDLERS


def test_names_that_this_torch_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "HANDLERS", {})

    @handles("no_such_op.default", "add.no_such_overload", "neg.default")
    def handler() -> None: ...

    assert {torch.ops.aten.neg.default: handler} == torch_device.HANDLERS


def test_not_implemented_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.neg.default
    monkeypatch.setitem(HANDLERS, op, lambda x: NotImplemented)
    monkeypatch.setattr(torch_device, "_rest", [lambda op, args, kwargs: (op, args, kwargs)])
    assert torch_device.run(op, (1,), {}) == (op, (1,), {})


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


def test_the_module(device: torch.device) -> None:
    module = torch.webgpu  # type: ignore[attr-defined]
    assert module.is_available()
    assert module.is_initialized()
    assert (module.device_count(), module.current_device()) == (1, 0)
    assert module.get_device_name() == gpu().name
    x = torch.ones(100, device=device) + 1
    module.synchronize()
    assert x.sum().item() == 200


def test_a_distributed_checkpoint_is_written(device: torch.device, tmp_path: Path) -> None:
    """torch.distributed.checkpoint asks the device that there is for its stream, always."""
    held = {"cpu": torch.arange(4.0), "gpu": torch.arange(4.0).to(device)}
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"cpu": held["cpu"]}, checkpoint_id=tmp_path)
        found = {"cpu": torch.zeros(4)}
        dcp.load(found, checkpoint_id=tmp_path)
    assert torch.equal(found["cpu"], held["cpu"])
    queue = torch.webgpu.current_stream()  # type: ignore[attr-defined]
    with torch.webgpu.stream(queue):  # type: ignore[attr-defined]
        queue.synchronize()
    assert torch.equal(held["gpu"].cpu(), held["cpu"])


def test_seeds_warn_of_nothing(device: torch.device) -> None:
    del device
    with warnings.catch_warnings(action="error"):
        torch.manual_seed(1)


def test_the_state_of_random_numbers(device: torch.device) -> None:
    module = torch.webgpu  # type: ignore[attr-defined]
    state = module.get_rng_state(device)
    first = torch.rand(3)
    module.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_memory_that_nobody_uses(device: torch.device) -> None:
    x = torch.ones(100, device=device)
    y = x * 2
    del x
    assert memory._free
    torch.webgpu.empty_cache()  # type: ignore[attr-defined]
    assert not memory._free
    assert y.sum().item() == 200


def test_how_it_is_shown(device: torch.device) -> None:
    x = torch.tensor([1.0, 2.5]).to(device)
    assert repr(x) == "tensor([1.0000, 2.5000], device='webgpu:0')"
    assert repr(x.half()).endswith("dtype=torch.float16, device='webgpu:0')")
    x.requires_grad_()
    assert repr(x).endswith("device='webgpu:0', requires_grad=True)")
    assert "grad_fn=<MulBackward0>" in repr(x * 2)
    assert repr(nn.Parameter(x.detach())).startswith("Parameter containing:\ntensor(")
    assert str(torch.zeros(0, device=device)) == "tensor([], device='webgpu:0')"


def test_numbers_for_python(device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0]]).to(device)
    assert x.tolist() == [[1.0, 2.0]]
    assert [each.item() for each in x[0]] == [1.0, 2.0]
    assert len(x[0]) == 2
    with pytest.raises(TypeError, match=r"use \.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [[1.0, 2.0]]
    with pytest.raises(NotImplementedError, match="no storage"):
        x.untyped_storage()


def test_places(device: torch.device) -> None:
    x, y = torch.ones(4, device=device), torch.ones(4, device=device)
    assert x.data_ptr() == x.view(2, 2).data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4
    assert rows((2, 3, 4)) == (12, 4, 1)
    assert rows((2, 0, 4)) == torch.empty(2, 0, 4).stride()
    assert rows(()) == ()


def test_copies(device: torch.device) -> None:
    x = nn.Parameter(torch.ones(3, device=device))
    deep, shallow = copy.deepcopy(x), copy.copy(x)
    assert all(isinstance(each, nn.Parameter) for each in (x, deep, shallow))
    assert isinstance(x, WebGPUTensor)
    with torch.no_grad():
        x.zero_()
    assert deep.sum().item() == 3
    assert shallow.sum().item() == 0
    twice = copy.deepcopy([x, x])
    assert twice[0] is twice[1]


def test_models_move_and_change_their_dtype(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    names = list(model.state_dict())
    model.to(device)
    assert {x.device for x in model.state_dict().values()} == {device}
    first = model[0].weight.detach().cpu()
    assert isinstance(model[0].weight, nn.Parameter)
    model.half()
    assert model[0].weight.dtype == torch.float16
    assert torch.equal(model[0].weight.detach().cpu(), first.half())
    model.float().cpu()
    assert type(model[0].weight) is nn.Parameter
    assert list(model.state_dict()) == names


def test_files_hold_tensors_of_the_cpu(device: torch.device) -> None:
    model = nn.Linear(4, 3)
    expected = {name: x.clone() for name, x in model.state_dict().items()}
    model.to(device)
    for written in (model.state_dict(), model):
        file = io.BytesIO()
        torch.save(written, file)
        file.seek(0)
        found = torch.load(file, weights_only=written is not model)
        found = found.state_dict() if found.__class__ is nn.Linear else found
        assert all(torch.equal(found[name], x) for name, x in expected.items())
        assert all(x.device.type == "cpu" for x in found.values())
    model.weight.data.zero_()
    model.load_state_dict(expected)
    assert model.weight.device == device
    assert torch.equal(model.weight.detach().cpu(), expected["weight"])
    assert torch.equal(load(save({"a": model.weight.detach()}))["a"], expected["weight"])
    assert torch.equal(pickle.loads(pickle.dumps(model.bias)), expected["bias"])


def test_training(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    other = copy.deepcopy(model).to(device)
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    for each, place in ((model, "cpu"), (other, "webgpu")):
        for _ in range(3):
            each.zero_grad()
            (each(x.to(place)) - y.to(place)).square().mean().backward()
            with torch.no_grad():
                for p in each.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), atol=1e-6, rtol=1e-5)


def test_data(device: torch.device) -> None:
    x = nn.Parameter(torch.ones(3, device=device))
    x.data = torch.zeros(5, device=device)
    assert x.shape == (5,)
    assert x.sum().item() == 0
    with pytest.raises(RuntimeError):
        x.data = torch.zeros(5)


def test_memory_of_views_and_of_the_cpu(device: torch.device) -> None:
    x = torch.arange(6.0).view(2, 3)
    on = x.to(device)
    assert on_gpu(on) is on.memory  # type: ignore[attr-defined]
    for view in (on.T, on[1:], on.view(6)[2:]):
        assert not is_whole(view)  # type: ignore[arg-type]
        memory = on_gpu(view)
        assert torch.equal(
            wrap_memory(memory, tuple(view.shape), view.dtype, torch.ones(1)), view.cpu()
        )
    assert torch.equal(wrap_memory(upload(x), (2, 3), x.dtype, on).cpu(), x)
    assert torch.equal(wrap_memory(on_gpu(x), (2, 3), x.dtype, x), x)
