# SPDX-License-Identifier: BSD-3-Clause
"""Models run on the device, quantized ones as well, and its errors say what to do."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.kernels import webgpu
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.torch_ops.entry import device as entry
from tests.kernels.webgpu.torch_ops.numbers import same

SLOW = ["mxfp4", "int4:group32:fp16", "nf4"]
FORMATS = [
    *("mxfp8", "int8:channel0:fp32", "nvfp4"),
    *(pytest.param(fmt, marks=pytest.mark.slow) for fmt in SLOW),
]


def test_the_device(device: torch.device) -> None:
    assert bs.webgpu() == entry() == device == torch.device("webgpu", 0)
    assert torch.ones(3).to(bs.webgpu()).device == device
    assert torch.ones(3).to("webgpu").device == device


def test_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webgpu, "available", lambda: "no WebGPU adapter is here")
    with pytest.raises(RuntimeError, match="no device webgpu: no WebGPU adapter is here"):
        bs.webgpu()


@pytest.mark.parametrize("fmt", FORMATS)
def test_tensors(fmt: str, device: torch.device) -> None:
    x = torch.randn(6, 64)
    expected = bs.quantize(x, fmt)
    found = bs.quantize(x.to(device), fmt)
    assert found.device == device
    assert "webgpu" in repr(found)
    assert torch.equal(found.packed.cpu(), expected.packed)
    assert same(found.dequantize(), expected.dequantize())
    assert same(found.to("cpu").dequantize(), expected.dequantize())
    assert same(expected.to(device).dequantize(), expected.dequantize())
    assert same(bs.fake_quantize(x.to(device), fmt), expected.dequantize())
    assert torch.equal(found.codes.cpu(), expected.codes)
    view = torch.randn(64, 6).to(device).T
    assert same(bs.quantize(view, fmt).dequantize(), bs.quantize(view.cpu(), fmt).dequantize())


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 64), nn.SiLU(),
        nn.Linear(64, 8),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_quantized_model(fmt: str, device: torch.device) -> None:
    model, x = mlp(), torch.randn(5, 64)
    bs.quantize_(model, fmt)
    with torch.no_grad():
        expected = model(x)
        moved = copy.deepcopy(model).to(device)
        found = moved(x.to(device))
    assert found.device == device
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
    back = moved.cpu()
    assert torch.equal(back(x), model(x))


def test_a_model_that_is_quantized_there(device: torch.device) -> None:
    model, other = mlp(), mlp().to(device)
    recipe = bs.Recipe(weight="int8:channel0:fp32", input="int8:token:fp32")
    bs.quantize_(model, recipe)
    with warnings.catch_warnings(action="ignore"):  # what it asks of weights, it asks the CPU
        bs.quantize_(other, recipe)
    for name, x in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].cpu(), x), name
    x = torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(other(x.to(device)).cpu(), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [None, "mxfp4", "int8:channel0:fp32"])
def test_minilm(fmt: str | None, device: torch.device) -> None:
    minilm = pytest.importorskip("blockscale.demo.minilm")
    path = minilm.directory()
    model = minilm.build(path)
    tokens = minilm.tokenize(path, ["a short one", "a sentence of several more words than that"])
    if fmt is not None:
        bs.quantize_(model, fmt)
    expected = minilm.embed(model, tokens)
    found = minilm.embed(model.to(device), {name: x.to(device) for name, x in tokens.items()})
    assert found.device == device
    torch.testing.assert_close(found.cpu(), expected, atol=1e-6, rtol=1e-4)


def test_saving(device: torch.device, tmp_path) -> None:
    model = mlp()
    bs.quantize_(model, "mxfp4")
    bs.save(model, tmp_path / "cpu.safetensors")
    bs.save(model.to(device), tmp_path / "gpu.safetensors")
    first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("cpu", "gpu"))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], x) for name, x in second.items())


def test_gradients_of_our_ops(device: torch.device) -> None:
    x = torch.randn(4, 64)
    on = x.to(device).requires_grad_()
    x.requires_grad_()
    (bs.fake_quantize(x, "int4:group32:fp32") * 2).sum().backward()
    (bs.fake_quantize(on, "int4:group32:fp32") * 2).sum().backward()
    assert on.grad is not None
    assert x.grad is not None
    assert same(on.grad, x.grad)


@contextmanager
def usable(device: torch.device) -> Iterator[None]:
    """Afterwards the device computes as before."""
    yield
    x = torch.randn(40)
    assert same(x.to(device) * 2, x * 2)


def test_too_large(device: torch.device) -> None:
    name, most = gpu().name, gpu().limits["max-buffer-size"]
    with usable(device), pytest.raises(GpuError) as error:
        torch.empty(most + 1, dtype=torch.uint8, device=device)
    assert name in str(error.value)
    assert f"at most {most} bytes (max-buffer-size)" in str(error.value)


def test_above_the_binding_limit(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2000).to(device)
    monkeypatch.setitem(gpu().limits, "max-storage-buffer-binding-size", 4096)
    with usable(device), pytest.raises(GpuError, match="max-storage-buffer-binding-size"):
        torch.tanh(x)
    assert x.cpu().shape == (2000,)  # reading is no kernel


def test_out_of_memory(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    def full(*args: object, **named: object) -> None:
        raise wgpu.GPUOutOfMemoryError("not enough memory")

    with monkeypatch.context() as patched:
        patched.setattr(gpu().device, "create_buffer", full)
        with pytest.raises(GpuError, match=r"ran out of memory while allocating 12320768 bytes"):
            torch.empty(3070123, device=device)
    with usable(device):
        torch.empty(3070123, device=device)


LOST = """
import warnings
import torch
import blockscale as bs
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu

warnings.simplefilter("ignore")
x = torch.ones(1000, device=bs.webgpu())
assert (x + 1).sum().item() == 2000
gpu().device.destroy()
again = lambda: torch.ones(5).to("webgpu")
for use in (lambda: (x + 1).cpu(), lambda: x.cpu(), again, lambda: repr(x)):
    try:
        use()
        raise AssertionError("a lost device computes")
    except GpuError as error:
        assert gpu().name in str(error) and "start the process again" in str(error), error
y = torch.randn(4, 64)
assert torch.equal(bs.quantize(y, "mxfp4").dequantize(), bs.fake_quantize(y, "mxfp4"))
print("usable")
"""


@pytest.mark.slow  # a process of its own
def test_a_lost_device() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "usable", done.stderr


TAKEN = """
import torch
torch.utils.rename_privateuse1_backend("other")
import warnings
import blockscale as bs

warnings.simplefilter("ignore")
try:
    bs.webgpu()
except RuntimeError as error:
    assert "other" in str(error), error
    print("refused")
"""


@pytest.mark.slow  # a process of its own
def test_another_device_of_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKEN], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "refused", done.stderr
