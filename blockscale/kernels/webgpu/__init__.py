"""Kernels for WebGPU (Vulkan, Metal, Direct3D 12), in WGSL: files named after their ops.

Tensors on the device "webgpu" stay there (`tensor`); with `bs.use("webgpu")`, tensors on the CPU
are taken there and their results brought back. BLOCKSCALE_WEBGPU_ADAPTER names a part of the
adapter's name, where there are several.
"""

import importlib.util

from blockscale.core.discover import import_all


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can."""
    if importlib.util.find_spec("wgpu") is None:
        return "wgpu is not installed: `pip install 'blockscale[webgpu]'`"
    from blockscale.kernels.webgpu.gpu.adapter import missing

    reason = missing()
    if reason is None:
        import_all(__name__, __path__)
    return reason


def takes(device: str) -> bool:
    """Whether tensors on a device of this type can go there."""
    return device in ("webgpu", "cpu")
