# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for WebGPU (Vulkan, Metal, Direct3D 12), in WGSL: files named after their ops.

Tensors on the device "webgpu" stay there (`tensor`); with `bs.use("webgpu")`, tensors on the CPU
are taken there and their results brought back. BLOCKSCALE_WEBGPU_ADAPTER names a part of the
adapter's name, where there are several.
"""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockscale.core import import_all

if TYPE_CHECKING:
    import torch


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can."""
    if importlib.util.find_spec("wgpu") is None:
        return "wgpu is not installed: `pip install 'blockscale[webgpu]'`"
    from blockscale.kernels.webgpu.gpu.device import missing

    reason = missing()
    if reason is None:
        import_all(__name__, __path__)
    return reason


def takes(device: str) -> bool:
    """Whether tensors on a device of this type can go there."""
    return device in ("webgpu", "cpu")


def webgpu() -> "torch.device":
    """The GPU as torch's device "webgpu": `x.to(bs.webgpu())`, `model.to("webgpu")` after it.

    Works with Vulkan, Metal and Direct3D 12, through the package wgpu (docs/webgpu.md). What WGSL
    has no kernel for, float64 and int64 arithmetic among it, runs on the CPU, with one warning.

    Raises RuntimeError where it cannot be used, and says why: wgpu is not installed, there is no
    adapter, or another library has registered a device of its own with torch.
    """
    if (reason := available()) is not None:
        raise RuntimeError(f"no device webgpu: {reason}")
    from blockscale.kernels.webgpu.torch_ops.factories import device

    return device()


def run_reference(reference: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a reference on the CPU, for tensors on the device: there floats are not IEEE's."""
    from blockscale.kernels.webgpu.torch_ops.factories import reference_on_cpu

    return reference_on_cpu(reference, args)
