# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for the package wgpu whose adapter computes nothing: it keeps the text of each shader.

`install` has to come before blockscale loads its kernels, in a process of its own: what a process
learns of its device stays in many caches.
"""

import importlib.machinery
import sys
import types
from typing import Any, NamedTuple

_LIMITS = {
    "max-compute-workgroups-per-dimension": 65535,
    "max-compute-invocations-per-workgroup": 1024,
    "max-compute-workgroup-storage-size": 49152,
    "max-storage-buffer-binding-size": 1 << 30,
    "max-buffer-size": 1 << 32,
    "max-texture-dimension-3d": 2048,
}
_TEXTURES = "texture-adapter-specific-format-features"
_FEATURES = ("shader-f16", "subgroup", "subgroup-barrier", "shader-int64", _TEXTURES)


class Kind(NamedTuple):
    """An adapter: what it can, what it is, and how it computes."""

    features: tuple[str, ...] = _FEATURES
    limits: tuple[tuple[str, int], ...] = ()
    vendor: int = 0x10DE  # NVIDIA
    subgroup: int = 32
    type: str = "DiscreteGPU"
    arithmetic: str = "integers"


KINDS = {
    "nvidia": Kind(),
    "intel": Kind(("subgroup", "subgroup-barrier", _TEXTURES), vendor=0x8086, subgroup=8),
    "small": Kind(
        limits=(
            ("max-storage-buffer-binding-size", 1 << 20),
            ("max-compute-workgroup-storage-size", 16384),
            ("max-compute-invocations-per-workgroup", 256),
        ),
        vendor=0x13B5,
        subgroup=4,
    ),
    "plain": Kind((_TEXTURES,)),  # without subgroups
    "software": Kind(("subgroup", _TEXTURES), vendor=0x10005, type="CPU"),
    "native": Kind(("subgroup", _TEXTURES), vendor=0x10005, type="CPU", arithmetic="native"),
}


class Nothing:
    """Whatever is done with it, nothing happens."""

    def __init__(self, **known: Any):
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: Nothing()


class Queue(Nothing):
    def read_buffer(self, buffer: Any, start: int, size: int) -> bytes:
        return bytes(size)


class Device:
    """texts: of the shaders that were compiled, in order."""

    def __init__(self, kind: Kind, adapter: Any):
        self.limits, self.adapter, self.queue = _LIMITS | dict(kind.limits), adapter, Queue()
        self.texts: list[str] = []

    def create_buffer(self, size: int, usage: int) -> Any:
        return Nothing(size=size)

    def create_shader_module(self, code: str) -> Any:
        self.texts.append(code)
        return Nothing()

    def __getattr__(self, name: str) -> Any:
        if name == "_internal":  # which would be wgpu's own
            raise AttributeError(name)
        return lambda *_, **__: Nothing()


def install(kind: Kind) -> Device:
    """Put the stand-in in wgpu's place; the device that all work goes to."""
    info = {
        "adapter_type": kind.type, "backend_type": "Vulkan", "device": "stand-in",
        "description": "no device", "vendor_id": kind.vendor, "subgroup_min_size": kind.subgroup,
    }  # fmt: skip
    adapter = Nothing(features=frozenset(kind.features), limits=_LIMITS, info=info)
    device = Device(kind, adapter)
    adapter.request_device_sync = lambda **_: device
    made: Any = types.ModuleType("wgpu")
    made.__spec__ = importlib.machinery.ModuleSpec("wgpu", None)
    made.gpu = Nothing(enumerate_adapters_sync=lambda: [adapter])
    made.BufferUsage = made.TextureUsage = types.SimpleNamespace(
        STORAGE=1, COPY_SRC=2, COPY_DST=4, UNIFORM=8, TEXTURE_BINDING=16, STORAGE_BINDING=32
    )
    made.GPUError = type("GPUError", (Exception,), {})
    made.GPUOutOfMemoryError = type("GPUOutOfMemoryError", (made.GPUError,), {})
    sys.modules["wgpu"] = made
    return device


def trust() -> None:
    """A device that computes nothing cannot pass our probes: take it for one that is right.

    To be called when the kernels have been loaded. The probes run once, for their texts.
    """
    from blockscale.kernels.webgpu import matmul_weight
    from blockscale.kernels.webgpu.gpu import probe
    from blockscale.kernels.webgpu.primitives import fast_path

    probe.wrongly_computed("integers")
    probe.wrongly_computed("native")
    matmul_weight.widened_exactly()
    fast_path.refusal()
    replaced: Any = (probe, fast_path, matmul_weight)
    replaced[0].wrongly_computed = lambda arithmetic="integers": ()
    replaced[1].refusal = lambda: None
    replaced[2].widened_exactly = lambda: True
