# SPDX-License-Identifier: BSD-3-Clause
"""Which adapter computes: the discrete GPU first, a software one last, and saying so."""

import os
import tempfile
import warnings
from functools import cache
from typing import Any

NAMED = "BLOCKSCALE_WEBGPU_ADAPTER"
_ORDER = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
_BACKENDS = ("Vulkan", "Metal", "D3D12")  # OpenGL lists the same GPUs again, with fewer features


@cache
def adapters() -> tuple[Any, ...]:
    """All adapters that can compute, the preferred one first; () where there are none."""
    # wgpu's Vulkan and OpenGL loaders complain on stderr where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    import wgpu

    found = [
        each
        for each in wgpu.gpu.enumerate_adapters_sync()
        if each.info["backend_type"] in _BACKENDS
    ]
    return tuple(sorted(found, key=_rank))


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
            f"WebGPU computes on {described(adapter)}, a software renderer: correct, but "
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
    named = os.environ.get(NAMED)
    there = "; ".join(described(each) for each in adapters())
    if named and there:
        return f"no WebGPU adapter's name has {NAMED}={named!r} in it; there are: {there}"
    return (
        "no WebGPU adapter is here: install a Vulkan driver (Debian: apt install "
        "mesa-vulkan-drivers, for one in software)"
    )


def _fitting() -> list[Any]:
    named = os.environ.get(NAMED, "").lower()
    return [each for each in adapters() if named in described(each).lower()]


def is_software(adapter: Any) -> bool:
    """Whether it computes on the CPU, as Mesa's lavapipe does."""
    kind: str = adapter.info["adapter_type"]
    return kind == "CPU"


def described(adapter: Any) -> str:
    """Its name, driver and way to it, for people."""
    info = adapter.info
    return f"{info['device']} ({info['description']}, {info['backend_type']})"
