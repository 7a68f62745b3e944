# SPDX-License-Identifier: BSD-3-Clause
"""Which adapter computes, its device and limits, and the work that waits to be given to it."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Which adapter computes: the discrete GPU first, a software one last, and saying so.

NAMED = "BLOCKSCALE_WEBGPU_ADAPTER"
_ORDER = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
_BACKENDS = ("Vulkan", "Metal", "D3D12")  # OpenGL lists the same GPUs again, with fewer features


@cache
def adapters() -> tuple[Any, ...]:
    """All adapters that can compute, the preferred one first; () where there are none."""
    # wgpu's Vulkan and OpenGL loaders complain on stderr where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    import wgpu

    results = [
        each
        for each in wgpu.gpu.enumerate_adapters_sync()
        if each.info["backend_type"] in _BACKENDS
    ]
    return tuple(sorted(results, key=_rank))


def _rank(adapter: Any) -> int:
    kind = adapter.info["adapter_type"]
    return _ORDER.index(kind) if kind in _ORDER else _ORDER.index("Unknown")


def choose() -> Any:
    """The adapter to use. Raises RuntimeError if there is none, or none that is so named."""
    reason = missing()
    if reason is not None:
        raise RuntimeError(reason)
    adapter = _fitting()[0]
    if is_software(adapter):
        warnings.warn(
            f"WebGPU computes on {describe(adapter)}, a software renderer: correct, but "
            "slow. For a GPU, install its Vulkan driver (docs/webgpu.md)",
            stacklevel=2,
        )
    return adapter


def missing() -> str | None:
    """Why no adapter can be used, or None."""
    try:
        if _fitting():
            return None
    except (ImportError, OSError, RuntimeError) as error:
        return f"wgpu cannot start here: {error}"
    wish = os.environ.get(NAMED)
    there = "; ".join(describe(each) for each in adapters())
    if wish and there:
        return f"no WebGPU adapter's name has {NAMED}={wish!r} in it; there are: {there}"
    return (
        "no WebGPU adapter is here: install a Vulkan driver (Debian: apt install "
        "mesa-vulkan-drivers, for one in software)"
    )


def _fitting() -> list[Any]:
    wish = os.environ.get(NAMED, "").lower()
    return [each for each in adapters() if wish in describe(each).lower()]


def is_software(adapter: Any) -> bool:
    """Whether it computes on the CPU, as Mesa's lavapipe does."""
    kind: str = adapter.info["adapter_type"]
    return kind == "CPU"


def describe(adapter: Any) -> str:
    """Its name, driver and way to it, for people."""
    info = adapter.info
    return f"{info['device']} ({info['description']}, {info['backend_type']})"


# The device that computes, its limits, and the work that waits to be given to it.

# What kernels make use of where it is there; nothing of it is needed for right results.
_WANTED = ("shader-f16", "subgroup", "subgroup-barrier", "timestamp-query", "shader-int64")
_TEXTURES = "texture-adapter-specific-format-features"
_TOGETHER = 128  # dispatches that wait before they are given to the device


class GpuError(RuntimeError):
    """What a WebGPU device refused or failed at; names the device, and what to do."""


class Gpu:
    """One device of an adapter. Work is recorded, and given to it before anything is read.

    name:     for people
    software: whether it is a CPU
    features: what it can beyond the standard
    limits:   {name: number}, WebGPU's own names
    """

    def __init__(self, adapter: Any):
        self.name = describe(adapter)
        self.software = is_software(adapter)
        targets = [each for each in (*_WANTED, _TEXTURES) if each in adapter.features]
        self.features = frozenset(targets)
        self.device = adapter.request_device_sync(
            label="blockscale", required_features=targets, required_limits=dict(adapter.limits)
        )
        self.limits: dict[str, int] = dict(self.device.limits)
        self._encoder: Any = None
        self._pass: Any = None
        self._waiting = 0

    @property
    def binding_limit(self) -> int:
        """The largest number of bytes that a kernel sees of one buffer."""
        return self.limits["max-storage-buffer-binding-size"] // 256 * 256

    def dispatch(self, pipeline: Any, group: Any, groups: tuple[int, int, int]) -> None:
        """Record one launch of a pipeline."""
        with self.explain_errors():
            if self._encoder is None:
                self._encoder = self.device.create_command_encoder()
            if self._pass is None:
                self._pass = self._encoder.begin_compute_pass()
            self._pass.set_pipeline(pipeline)
            self._pass.set_bind_group(0, group)
            self._pass.dispatch_workgroups(*groups)
            self._waiting += 1
        if self._waiting >= _TOGETHER:
            self.flush()

    @contextmanager
    def encoder(self) -> Iterator[Any]:
        """A command encoder for copies, in the order of what was recorded before."""
        with self.explain_errors():
            if self._encoder is None:
                self._encoder = self.device.create_command_encoder()
            if self._pass is not None:
                self._pass.end()
                self._pass = None
            yield self._encoder
            self._waiting += 1

    def flush(self) -> None:
        """Give the device what was recorded."""
        if self._encoder is None:
            return
        encoder, open_pass = self._encoder, self._pass
        self._encoder = self._pass = None
        self._waiting = 0
        with self.explain_errors():
            if open_pass is not None:
                open_pass.end()
            self.device.queue.submit([encoder.finish()])

    @contextmanager
    def explain_errors(self, doing: str = "running a kernel") -> Iterator[None]:
        """Errors of wgpu become GpuError, with the device's name and what to do."""
        import wgpu

        try:
            yield
        except wgpu.GPUOutOfMemoryError as error:
            raise GpuError(
                f"{self.name} ran out of memory while {doing}: {error}. Work on smaller pieces, "
                f"or free tensors on the device"
            ) from None
        except wgpu.GPUError as error:
            is_lost = "lost" in str(error).lower()
            advice = "start the process again" if is_lost else "please report this"
            raise GpuError(f"{self.name} failed while {doing}: {error} ({advice})") from None


@cache
def gpu() -> Gpu:
    """The device of this process. Raises RuntimeError if there is none."""
    return Gpu(choose())
