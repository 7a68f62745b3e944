# SPDX-License-Identifier: BSD-3-Clause
"""The device that computes, its limits, and the work that waits to be given to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from blockscale.kernels.webgpu.gpu.adapter import choose, described, is_software

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
        self.name = described(adapter)
        self.software = is_software(adapter)
        wanted = [each for each in (*_WANTED, _TEXTURES) if each in adapter.features]
        self.features = frozenset(wanted)
        self.device = adapter.request_device_sync(
            label="blockscale", required_features=wanted, required_limits=dict(adapter.limits)
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
        with self.telling():
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
        with self.telling():
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
        encoder, ended = self._encoder, self._pass
        self._encoder = self._pass = None
        self._waiting = 0
        with self.telling():
            if ended is not None:
                ended.end()
            self.device.queue.submit([encoder.finish()])

    @contextmanager
    def telling(self, doing: str = "running a kernel") -> Iterator[None]:
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
            lost = "lost" in str(error).lower()
            advice = "start the process again" if lost else "please report this"
            raise GpuError(f"{self.name} failed while {doing}: {error} ({advice})") from None


@cache
def gpu() -> Gpu:
    """The device of this process. Raises RuntimeError if there is none."""
    return Gpu(choose())
