# SPDX-License-Identifier: BSD-3-Clause
"""The device's own clock: how long recorded work takes there, however long it took to record."""

from typing import Any

from blockscale.kernels.webgpu.gpu.device import Gpu, GpuError, gpu

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
        found = self._gpu.device.queue.read_buffer(self._buffer, 0, 32)
        times = memoryview(bytes(found)).cast("Q")
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
