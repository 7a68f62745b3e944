# SPDX-License-Identifier: BSD-3-Clause
"""torch.webgpu is what torch and people call."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from blockscale.kernels.webgpu.gpu import memory
from blockscale.kernels.webgpu.gpu.device import gpu


def test_the_module(device: torch.device) -> None:
    module = torch.webgpu  # type: ignore[attr-defined]
    assert module.is_available()
    assert module.is_initialized()
    assert (module.device_count(), module.current_device()) == (1, 0)
    assert module.get_device_name() == gpu().name
    x = torch.ones(100, device=device) + 1
    module.synchronize()
    assert x.sum().item() == 200


def test_a_distributed_checkpoint_is_written(device: torch.device, tmp_path: Path) -> None:
    """torch.distributed.checkpoint asks the device that there is for its stream, always."""
    held = {"cpu": torch.arange(4.0), "gpu": torch.arange(4.0).to(device)}
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"cpu": held["cpu"]}, checkpoint_id=tmp_path)
        found = {"cpu": torch.zeros(4)}
        dcp.load(found, checkpoint_id=tmp_path)
    assert torch.equal(found["cpu"], held["cpu"])
    queue = torch.webgpu.current_stream()  # type: ignore[attr-defined]
    with torch.webgpu.stream(queue):  # type: ignore[attr-defined]
        queue.synchronize()
    assert torch.equal(held["gpu"].cpu(), held["cpu"])


def test_seeds_warn_of_nothing(device: torch.device) -> None:
    del device
    with warnings.catch_warnings(action="error"):
        torch.manual_seed(1)


def test_the_state_of_random_numbers(device: torch.device) -> None:
    module = torch.webgpu  # type: ignore[attr-defined]
    state = module.get_rng_state(device)
    first = torch.rand(3)
    module.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_memory_that_nobody_uses(device: torch.device) -> None:
    x = torch.ones(100, device=device)
    y = x * 2
    del x
    assert memory._free
    torch.webgpu.empty_cache()  # type: ignore[attr-defined]
    assert not memory._free
    assert y.sum().item() == 200
