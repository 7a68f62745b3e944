# SPDX-License-Identifier: BSD-3-Clause
"""What torch calls of a device beside its ops: the module `torch.webgpu`."""

from contextlib import AbstractContextManager, nullcontext

import torch

from blockscale.kernels.webgpu.gpu.device import gpu, missing
from blockscale.kernels.webgpu.gpu.memory import allocate, download, release


class Queue:
    """The device's one queue, where torch asks for a stream (torch.distributed.checkpoint)."""

    device_type = "webgpu"

    def synchronize(self) -> None:
        """Wait until all that was recorded has been computed."""
        download(allocate(4), (1,), torch.int32)  # reading waits for what was recorded before

    def wait_stream(self, other: object) -> None:
        """Nothing to do: there is no other one."""


_QUEUE = Queue()


class Module:
    """`torch.webgpu`: one device, whose random numbers are the CPU's."""

    def is_available(self) -> bool:
        """Whether there is an adapter."""
        return missing() is None

    def is_initialized(self) -> bool:
        """Whether it is ready: this module is there when it is."""
        return True

    def device_count(self) -> int:
        """One: BLOCKSCALE_WEBGPU_ADAPTER says which."""
        return 1

    def current_device(self) -> int:
        """Its number."""
        return 0

    def get_device_name(self, device: object = None) -> str:
        """The adapter's name, driver and way to it."""
        del device
        return gpu().name

    def synchronize(self, device: object = None) -> None:
        """Wait until all that was recorded has been computed."""
        del device
        _QUEUE.synchronize()

    def current_stream(self, device: object = None) -> Queue:
        """The one that there is."""
        del device
        return _QUEUE

    def stream(self, stream: Queue) -> AbstractContextManager[None]:
        """Inside, what is recorded goes to the one queue, as it does outside."""
        del stream
        return nullcontext()

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the system."""
        gpu().flush()
        release()

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to do: random numbers are drawn on the CPU, which torch.manual_seed seeds."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What torch.autocast may take, which torch.utils.checkpoint asks of every device."""
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """The CPU's, by which numbers are drawn; torch.compile keeps and restores it."""
        del device
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        """Set the CPU's."""
        del device
        torch.set_rng_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False
