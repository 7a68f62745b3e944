# SPDX-License-Identifier: BSD-3-Clause
"""Which adapter is taken, and what is said where there is none."""

from types import SimpleNamespace

import pytest
import torch
import wgpu

from blockscale.kernels.webgpu.gpu import device
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload, zeros
from blockscale.kernels.webgpu.gpu.shader import Shader
from tests.support.webgpu_device import copy

NAMES = {
    "CPU": "llvmpipe", "IntegratedGPU": "Iris", "DiscreteGPU": "H200", "VirtualGPU": "virtio"
}  # fmt: skip


def made(kind, backend="Vulkan"):
    info = {"device": NAMES[kind], "description": "a driver", "adapter_type": kind}
    return SimpleNamespace(info=info | {"backend_type": backend})


@pytest.fixture
def there(monkeypatch):
    """A function that says which adapters there are."""
    import wgpu

    def say(*found):
        monkeypatch.setattr(
            wgpu, "gpu", SimpleNamespace(enumerate_adapters_sync=lambda: list(found))
        )
        device.adapters.cache_clear()

    yield say
    monkeypatch.undo()
    device.adapters.cache_clear()


def test_the_discrete_gpu_comes_first(there):
    there(made("CPU"), made("IntegratedGPU"), made("DiscreteGPU"), made("VirtualGPU"))
    assert [each.info["device"] for each in device.adapters()] == [
        "H200", "Iris", "virtio", "llvmpipe",
    ]  # fmt: skip
    assert device.choose().info["device"] == "H200"


def test_opengl_is_left_out(there):
    there(made("DiscreteGPU", "OpenGL"), made("CPU"))
    assert [each.info["device"] for each in device.adapters()] == ["llvmpipe"]


def test_a_software_adapter_says_so(there):
    there(made("CPU"))
    with pytest.warns(UserWarning, match="llvmpipe.* a software renderer: correct, but slow"):
        assert device.is_software(device.choose())


def test_a_name_chooses(there, monkeypatch):
    there(made("DiscreteGPU"), made("IntegratedGPU"))
    monkeypatch.setenv(device.NAMED, "iris")
    assert device.choose().info["device"] == "Iris"


def test_a_name_that_none_has_lists_those_there_are(there, monkeypatch):
    there(made("DiscreteGPU"))
    monkeypatch.setenv(device.NAMED, "radeon")
    with pytest.raises(RuntimeError, match=r"'radeon' in it; there are: H200 \(a driver, Vulkan\)"):
        device.choose()


def test_no_adapter_says_what_to_install(there):
    there()
    assert "install a Vulkan driver" in device.missing()
    with pytest.raises(RuntimeError, match="mesa-vulkan-drivers"):
        device.choose()


def test_a_library_that_does_not_load_is_a_reason(there, monkeypatch):
    import wgpu

    def broken():
        raise OSError("libwgpu_native.so: wrong ELF class")

    there()
    monkeypatch.setattr(wgpu, "gpu", SimpleNamespace(enumerate_adapters_sync=broken))
    assert "cannot start here: libwgpu_native.so" in device.missing()


def test_launches_and_copies_keep_their_order():
    """A launch after a copy does not drop it, nor the other way round."""
    x = torch.arange(64, dtype=torch.int32)
    source, first, second = upload(x), allocate(256), allocate(256)
    copy(source, first)
    with gpu().encoder() as encoder:
        encoder.copy_buffer_to_buffer(first.buffer, 0, second.buffer, 0, 256)
    copy(zeros(256), first)
    assert torch.equal(download(second, (64,), torch.int32), x)
    assert not download(first, (64,), torch.int32).any()


def test_more_launches_than_wait_together():
    x = torch.arange(64, dtype=torch.int32)
    a, b = upload(x), allocate(256)
    for _ in range(300):
        copy(a, b)
        a, b = b, a
    assert torch.equal(download(a, (64,), torch.int32), x)


def test_flush_of_nothing():
    gpu().flush()
    gpu().flush()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (wgpu.GPUOutOfMemoryError("no room"), "ran out of memory while .*: no room.*smaller"),
        (wgpu.GPUValidationError("Device is lost"), "start the process again"),
        (wgpu.GPUInternalError("whatever"), "please report this"),
    ],
)
def test_errors_name_the_device_and_a_remedy(error, said):
    with pytest.raises(GpuError, match=said) as raised, gpu().explain_errors("testing"):
        raise error
    assert gpu().name in str(raised.value)


def test_a_wrong_shader_leaves_the_device_usable(tmp_path, monkeypatch):
    from blockscale.kernels.webgpu.gpu import shader

    (tmp_path / "wrong.wgsl").write_text("fn main() { let x: u32 = 1.5; }\n")
    monkeypatch.setattr(shader, "_FOLDER", tmp_path)
    with pytest.raises(GpuError, match="failed while compiling a kernel"):
        launch(Shader("wrong"), {}, {}, 1)
    monkeypatch.undo()
    x = torch.arange(64, dtype=torch.int32)
    result = allocate(256)
    copy(upload(x), result)
    assert torch.equal(download(result, (64,), torch.int32), x)


def test_the_limit_of_bindings_is_a_multiple_of_every_alignment():
    assert gpu().binding_limit % 256 == 0
    assert 0 < gpu().binding_limit <= gpu().limits["max-storage-buffer-binding-size"]
