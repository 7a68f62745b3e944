# SPDX-License-Identifier: BSD-3-Clause
"""New tensors on the device are torch's."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels import registry, webgpu
from blockscale.kernels.registry import KERNELS
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.factories import as_meta, reference_on_cpu
from blockscale.kernels.webgpu.torch_ops.factories import device as entry
from blockscale.ops.fused import FUSED
from blockscale.ops.op import OPS
from docs.pages import webgpu as table
from tests.kernels.webgpu.torch_ops.numbers import same

DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factories(dtype: torch.dtype, device: torch.device) -> None:
    options = {"dtype": dtype, "device": device}
    assert same(torch.zeros(3, 5, **options), torch.zeros(3, 5, dtype=dtype))
    assert same(torch.ones(7, **options), torch.ones(7, dtype=dtype))
    assert same(torch.full((2, 3), 1, **options), torch.full((2, 3), 1, dtype=dtype))
    assert same(torch.tensor([1, 0, 1], **options), torch.tensor([1, 0, 1], dtype=dtype))
    assert torch.empty(4, 2, **options).shape == (4, 2)
    strided = torch.empty_strided((2, 3), (1, 2), **options)
    assert strided.stride() == (1, 2)
    strided.fill_(1)
    assert same(strided, torch.ones(2, 3, dtype=dtype))


def test_factories_of_numbers(device: torch.device) -> None:
    assert same(torch.arange(5, device=device), torch.arange(5))
    assert same(torch.arange(1, 2, 0.3, device=device), torch.arange(1, 2, 0.3))
    assert same(torch.tensor(2.5, device=device), torch.tensor(2.5))
    assert same(torch.scalar_tensor(4, device=device), torch.scalar_tensor(4))


def test_like_another(device: torch.device) -> None:
    x = torch.randn(3, 4).to(device)
    assert same(torch.zeros_like(x), torch.zeros(3, 4))
    assert same(torch.ones_like(x, dtype=torch.int32), torch.ones(3, 4, dtype=torch.int32))
    assert same(torch.full_like(x, 2), torch.full((3, 4), 2.0))
    assert same(x.new_zeros(2), torch.zeros(2))
    assert same(x.new_ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    assert same(x.new_full((2,), 5), torch.full((2,), 5.0))
    assert x.new_empty(2, 2).shape == torch.empty_like(x)[:2, :2].shape
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert torch.empty_like(x, device="meta").device.type == "meta"


@pytest.mark.parametrize("name", ["randn", "rand"])
def test_random_numbers_are_the_cpus(name: str, device: torch.device) -> None:
    torch.manual_seed(4)
    expected = getattr(torch, name)(40)
    torch.manual_seed(4)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert same(getattr(torch, name)(40, device=device), expected)


def test_what_only_the_cpu_makes(device: torch.device) -> None:
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert same(torch.eye(3, device=device), torch.eye(3))
    with pytest.warns(UserWarning, match="runs on the CPU"):
        assert torch.randperm(9, device=device).sum().item() == 36


def test_filling(device: torch.device) -> None:
    x = torch.randn(5, 6).to(device)
    x[1:3].zero_()
    x[:, 2] = 7
    x[0, 0] = torch.tensor(3.0)
    assert x[1:3].sum().item() == 14
    assert x[:, 2].sum().item() == 35
    assert x[0, 0].item() == 3
    assert x.zero_().sum().item() == 0


def test_there_is_one_device(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="no device webgpu:1"):
        torch.ones(3, device="webgpu:1")
    with pytest.raises(RuntimeError, match="no device webgpu:1"):
        torch.ones(3).to("webgpu:1")
    assert torch.ones(3, device="webgpu:0").device == device


def test_one_warning_an_op(device: torch.device) -> None:
    x = torch.randn(5).to(device)
    with pytest.warns(UserWarning, match=r"no kernel for aten\.cumsum\.default of float32"):
        found = x.cumsum(0)
    assert same(found, x.cpu().cumsum(0))
    with warnings.catch_warnings(action="error"):
        x.cumsum(0)


def test_the_warning_points_to_who_called(device: torch.device) -> None:
    with pytest.warns(UserWarning) as caught:
        torch.ones(3, device=device).cumsum(0)
    assert caught[0].filename == __file__


def test_results_of_several_tensors(device: torch.device) -> None:
    x = torch.randn(4, 9)
    with pytest.warns(UserWarning, match="topk"):
        values, indices = x.to(device).topk(3)
    assert same(values, x.topk(3)[0])
    assert same(indices, x.topk(3)[1])
    assert indices.device == device


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_dtypes_that_wgsl_lacks(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.arange(6).to(dtype)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        found = (x.to(device) + x.to(device)) * 3
    assert found.dtype == dtype
    assert found.device == device
    assert torch.equal(found.cpu(), x * 6)


def test_ops_that_write(device: torch.device) -> None:
    x = torch.randn(3, 5)
    on = x.to(device)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        on[:, 1:4].cumsum_(0)
    x[:, 1:4] = x[:, 1:4].cumsum(0)
    assert same(on, x)
    out = torch.empty(0, device=device)
    with pytest.warns(UserWarning, match="runs on the CPU"):
        torch.cumsum(on, 0, out=out)
    assert same(out, x.cumsum(0))


def test_lists_of_tensors(device: torch.device) -> None:
    on = [torch.ones(3, device=device), torch.ones(2, 2, device=device)]
    with pytest.warns(UserWarning, match="_foreach_add_"):
        torch._foreach_add_(on, 2.0)
    assert [x.sum().item() for x in on] == [9, 12]


def test_what_is_asked_for_warns_of_nothing(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    assert torch.equal(x, x)
    assert torch.allclose(x, x + 1e-9)
    assert x[0].item() == 1
    assert bool(x[0])


def test_without_gradients_ops_are_taken_apart(device: torch.device) -> None:
    layer = torch.nn.Linear(6, 3)
    x = torch.randn(2, 6)
    with torch.inference_mode():
        expected = layer(x)
        found = torch.nn.Linear.forward(layer.to(device), x.to(device))
    torch.testing.assert_close(found.cpu(), expected)


def test_our_ops_run_their_reference_on_the_cpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 64)
    expected = bs.quantize(x, "mxfp4")
    for op in ("choose_quantize", "dequantize"):
        monkeypatch.setitem(KERNELS, (op, "webgpu"), [])
    monkeypatch.setattr(registry, "_settled", {})
    monkeypatch.setattr(registry, "_warned", set())
    with pytest.warns(UserWarning, match="no webgpu kernel runs choose_quantize"):
        q = bs.quantize(x.to(device), "mxfp4")
    assert q.device == device
    assert torch.equal(q.packed.cpu(), expected.packed)
    with pytest.warns(UserWarning, match="no webgpu kernel runs dequantize"):
        assert same(q.dequantize(), expected.dequantize())


def test_the_reference_by_name(device: torch.device) -> None:
    x = torch.randn(4, 64)
    with bs.use("reference"):
        found = bs.fake_quantize(x.to(device), "int4:group32:fp32")
        assert same(found, bs.fake_quantize(x, "int4:group32:fp32"))
    assert found.device == device


def test_a_reference_sees_the_cpu(device: torch.device) -> None:
    seen = []

    def reference(x: torch.Tensor, others: list[torch.Tensor | None]) -> list[torch.Tensor]:
        seen.extend([x.device.type, others[0].device.type])  # type: ignore[union-attr]
        return [x + 1]

    on = torch.ones(3, device=device)
    found = reference_on_cpu(reference, (on, [on, None]))
    assert seen == ["cpu", "cpu"]
    assert same(found[0], torch.full((3,), 2.0))


def test_fused_ops_are_composed_on_the_device(device: torch.device) -> None:
    """As docs/webgpu.md says: warnings are errors here, so nothing of them runs on the CPU."""
    x = torch.randn(4, 64)
    by = Quantizer(None, None, None, str(parse("mxfp4")), None)
    found = FUSED["relu"](Value(x.to(device)), dtype=torch.float32, y=by)
    with bs.use("reference"):
        expected = FUSED["relu"](Value(x), dtype=torch.float32, y=by)
    assert [each.device for each in found] == [device] * len(expected)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_the_table_of_the_documentation_is_true() -> None:
    files = table.kernels()
    assert {"conv", "linear"} <= OPS.keys()
    for name in OPS:
        runs = registry.supporting(name, "webgpu", (str(parse("mxfp4")),), ()) is not None
        assert runs == (name in files), name


CUTS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.view(6, 20), lambda t: t.reshape(-1), lambda t: t.transpose(0, 2),
    lambda t: t.permute(2, 0, 1), lambda t: t[1], lambda t: t[:, 1:3], lambda t: t[..., ::2],
    lambda t: t.unsqueeze(1), lambda t: t[:1].squeeze(0), lambda t: t[:1].expand(7, 6, 5),
    lambda t: t.diagonal(0, 0, 1), lambda t: t.unfold(1, 2, 3), lambda t: t.flatten(1),
    lambda t: t.narrow(1, 2, 3), lambda t: t.as_strided((3, 2), (2, 9), 4), lambda t: t.detach(),
    lambda t: t.view(torch.int32), lambda t: t.view(torch.uint8), lambda t: t.movedim(0, 2),
    lambda t: t[2:].split(2, 1)[1], lambda t: t.chunk(2, 2)[1], lambda t: t.unbind(1)[3],
]  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("number", range(len(CUTS)))
def test_views(number: int, device: torch.device) -> None:
    x, cut = torch.randn(4, 6, 5), CUTS[number]
    on = x.to(device)
    found, expected = cut(on), cut(x)
    assert isinstance(found, WebGPUTensor)
    assert found.memory is on.memory  # type: ignore[attr-defined]
    assert (found.shape, found.stride(), found.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )
    assert found.storage_offset() == expected.storage_offset()
    assert torch.equal(found.cpu(), expected)


def test_a_view_sees_what_is_written(device: torch.device) -> None:
    on = torch.zeros(4, 6, device=device)
    view = on.T[2:4]
    on.fill_(3)
    assert view.sum().item() == 24
    view.zero_()
    assert on.sum().item() == 48


def test_gradients_go_through_views(device: torch.device) -> None:
    on = torch.ones(4, 6, device=device, requires_grad=True)
    (on.T[1:3].reshape(-1) * 2).sum().backward()
    expected = torch.zeros(4, 6)
    expected[:, 1:3] = 2
    assert on.grad is not None
    assert torch.equal(on.grad.cpu(), expected)


def test_views_that_cannot_be(device: torch.device) -> None:
    on = torch.ones(4, 6, device=device)
    with pytest.raises(RuntimeError):
        on.T.view(24)
    with pytest.raises(RuntimeError):
        on.view(5, 5)


def test_as_meta() -> None:
    x = torch.randn(4, 6)[1:, ::2].T
    found = as_meta(x)
    assert (found.shape, found.stride(), found.storage_offset()) == (
        x.shape,
        x.stride(),
        x.storage_offset(),
    )
    assert as_meta(torch.empty(3, 0)).shape == (3, 0)


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


@pytest.mark.some(5)
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


@pytest.mark.slow
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
