# SPDX-License-Identifier: BSD-3-Clause
"""Which adapter is taken, and what is said where there is none."""

from types import SimpleNamespace

import pytest

from blockscale.kernels.webgpu.gpu import adapter

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
        adapter.adapters.cache_clear()

    yield say
    monkeypatch.undo()
    adapter.adapters.cache_clear()


def test_the_discrete_gpu_comes_first(there):
    there(made("CPU"), made("IntegratedGPU"), made("DiscreteGPU"), made("VirtualGPU"))
    assert [each.info["device"] for each in adapter.adapters()] == [
        "H200", "Iris", "virtio", "llvmpipe",
    ]  # fmt: skip
    assert adapter.choose().info["device"] == "H200"


def test_opengl_is_left_out(there):
    there(made("DiscreteGPU", "OpenGL"), made("CPU"))
    assert [each.info["device"] for each in adapter.adapters()] == ["llvmpipe"]


def test_a_software_adapter_says_so(there):
    there(made("CPU"))
    with pytest.warns(UserWarning, match="llvmpipe.* a software renderer: correct, but slow"):
        assert adapter.is_software(adapter.choose())


def test_a_name_chooses(there, monkeypatch):
    there(made("DiscreteGPU"), made("IntegratedGPU"))
    monkeypatch.setenv(adapter.NAMED, "iris")
    assert adapter.choose().info["device"] == "Iris"


def test_a_name_that_none_has_lists_those_there_are(there, monkeypatch):
    there(made("DiscreteGPU"))
    monkeypatch.setenv(adapter.NAMED, "radeon")
    with pytest.raises(RuntimeError, match=r"'radeon' in it; there are: H200 \(a driver, Vulkan\)"):
        adapter.choose()


def test_no_adapter_says_what_to_install(there):
    there()
    assert "install a Vulkan driver" in adapter.missing()
    with pytest.raises(RuntimeError, match="mesa-vulkan-drivers"):
        adapter.choose()


def test_a_library_that_does_not_load_is_a_reason(there, monkeypatch):
    import wgpu

    def broken():
        raise OSError("libwgpu_native.so: wrong ELF class")

    there()
    monkeypatch.setattr(wgpu, "gpu", SimpleNamespace(enumerate_adapters_sync=broken))
    assert "cannot start here: libwgpu_native.so" in adapter.missing()
