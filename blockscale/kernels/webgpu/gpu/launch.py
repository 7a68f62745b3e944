# SPDX-License-Identifier: BSD-3-Clause
"""Launching shaders: pipelines are kept by their text, sizes are baked in where that pays."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.device import Gpu, GpuError, gpu
from blockscale.kernels.webgpu.gpu.memory import Memory, Texels, upload
from blockscale.kernels.webgpu.gpu.shader import Shader, source, tables

_BAKED = 1 << 20  # groups x 64 from which a pipeline of its own for these sizes pays
# What is kept at most, the latest used: sizes that change at every call would fill memory. A model
# needs dozens of pipelines; one takes about 2.4 MB on Mesa's lavapipe, which compiles for the CPU.
PIPELINES, WORDS = 1024, 8192


class Window(NamedTuple):
    """A part of a buffer, as large as a kernel may see: `start` is a multiple of 256 bytes."""

    memory: Memory
    start: int
    nbytes: int


Bound = Memory | Window | Texels


def launch(
    shader: Shader,
    buffers: Mapping[str, Bound],
    sizes: Mapping[str, int],
    groups: int | tuple[int, int, int],
    *,
    bake: bool | None = None,
) -> None:
    """Run `groups` workgroups of a shader.

    buffers: by the names that the shader binds, textures among them
    sizes: by the names that it reads; each below 2^32
    groups: how many, or a grid (max-compute-workgroups-per-dimension along each at most)
    bake: sizes are constants of a pipeline of their own; None: where the call is large

    Raises GpuError for a buffer that is larger than the device's kernels can see.
    """
    count = groups if isinstance(groups, int) else prod(groups)
    if count == 0:
        return
    device = gpu()
    names, values = tuple(sizes), tuple(sizes.values())
    fixed = count * 64 >= _BAKED if bake is None else bake
    result = source(shader, names, values if fixed else None)
    pipeline = pipeline_of(result.text)
    bounds: dict[str, Bound] = dict(buffers)
    own = tables(shader)
    bounds |= {name: _words(own[name]) for name in result.bindings if name in own}
    if "sizes" in result.bindings:
        bounds["sizes"] = _words(values)
    entries = [
        {"binding": i, "resource": _resource(device, name, bounds[name])}
        for i, name in enumerate(result.bindings)
    ]
    with device.explain_errors():
        group = device.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=entries
        )
    shape = grid(groups, device.limits) if isinstance(groups, int) else groups
    device.dispatch(pipeline, group, shape)


def grid(groups: int, limits: Mapping[str, int]) -> tuple[int, int, int]:
    """Workgroups as a grid of two dimensions, of which neither is above the device's limit.

    There may be a few more than asked for: kernels leave out what lies beyond their sizes.
    """
    most = limits["max-compute-workgroups-per-dimension"]
    rows = -(-groups // most)
    return -(-groups // rows), rows, 1


def _resource(device: Gpu, name: str, part: Bound) -> Any:
    if isinstance(part, Texels):
        return part.view
    window = part if isinstance(part, Window) else _all(part)
    if window.nbytes > device.binding_limit:
        raise GpuError(
            f"{name} has {window.nbytes} bytes, and kernels on {device.name} see at most "
            f"{device.binding_limit} (max-storage-buffer-binding-size)"
        )
    return {"buffer": window.memory.buffer, "offset": window.start, "size": window.nbytes}


def _all(memory: Memory) -> Window:
    return Window(memory, 0, max(-(-memory.nbytes // 4) * 4, 4))


@lru_cache(PIPELINES)
def pipeline_of(text: str) -> Any:
    """The compiled form of a shader's text."""
    device = gpu()
    with device.explain_errors("compiling a kernel"):
        module = compiled(device.device, text)
        return device.device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )


@lru_cache(WORDS)
def _words(values: tuple[int, ...]) -> Memory:
    """Memory with these words, kept for later calls."""
    padded = [*values, *[0] * (-len(values) % 4)]
    return upload(torch.tensor(padded, dtype=torch.int64).to(torch.int32))


# Modules are made without the counters that wgpu puts into every loop to make sure that no shader
# runs for ever, which keep compilers from unrolling loops and arrays in registers. Our loops end;
# indices stay checked. wgpu-py 0.32 has that of wgpu-native in its C interface alone; where it is
# not found, modules are made in the usual way.


_BOUNDS = 1  # WGPUShaderRuntimeChecks_BoundsChecks, and no ForceLoopBounding


def compiled(device: Any, text: str) -> Any:
    """A shader module of a wgpu device. Raises wgpu.GPUError for text that is no WGSL."""
    try:
        from wgpu.backends.wgpu_native import _api as api

        create = api.libf.wgpuDeviceCreateShaderModuleTrusted
        kind = api.lib.WGPUSType_ShaderSourceWGSL
        internal, string, struct = device._internal, api.to_c_string_view, api.new_struct_p
    except (ImportError, AttributeError):  # another release, or another backend
        return device.create_shader_module(code=text)
    source = struct("WGPUShaderSourceWGSL *", code=string(text))
    source[0].chain.next = api.ffi.NULL
    source[0].chain.sType = kind
    chain = api.ffi.cast("WGPUChainedStruct *", source)
    descriptor = struct("WGPUShaderModuleDescriptor *", nextInChain=chain, label=string(""))
    module = create(internal, descriptor, _BOUNDS)
    if module == api.ffi.NULL:
        raise RuntimeError("wgpu could not compile a shader, and gave no reason")
    return api.GPUShaderModule("", module, device)


# The device's own clock: how long recorded work takes there, however long it took to record.

_FEATURE = "timestamp-query"


class Stopwatch:
    """Two marks in the order of recorded work. Raises GpuError if the device has no clock."""

    def __init__(self) -> None:
        import wgpu

        self._gpu = gpu()
        if _FEATURE not in self._gpu.features:
            raise GpuError(f"{self._gpu.name} cannot measure times (it lacks {_FEATURE})")
        self._times = self._gpu.device.create_query_set(type="timestamp", count=4)
        self._buffer = self._gpu.device.create_buffer(
            size=256, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        )

    def start(self) -> None:
        """What is recorded from now on is timed. What was before is given to the device."""
        self._gpu.flush()
        self._mark(0)

    def stop(self) -> float:
        """Seconds from the start to the end of what was recorded since. Waits for it."""
        self._mark(2)
        with self._gpu.encoder() as encoder:
            encoder.resolve_query_set(self._times, 0, 4, self._buffer, 0)
        self._gpu.flush()
        result = self._gpu.device.queue.read_buffer(self._buffer, 0, 32)
        times = memoryview(bytes(result)).cast("Q")
        return (times[2] - times[1]) * _period(self._gpu) / 1e9

    def _mark(self, first: int) -> None:
        """An empty pass, which begins when all before it has ended."""
        writes = {
            "query_set": self._times,
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }
        with self._gpu.encoder() as encoder:
            encoder.begin_compute_pass(timestamp_writes=writes).end()


def _period(device: Gpu) -> float:
    """Nanoseconds of one tick, which wgpu-py 0.32 tells through its C interface alone."""
    from wgpu.backends.wgpu_native import lib

    queue: Any = device.device.queue
    return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))
