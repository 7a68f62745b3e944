# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for CUDA, in Triton: files named after their ops, device code beside them.

With TRITON_INTERPRET=1 set before the first op, Triton's interpreter runs them on the CPU's
tensors, slowly: for tests on machines without a GPU.
"""

import importlib.util

import torch

from blockscale.core import import_all


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: `pip install triton`"
    if not interpreting() and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    import_all(__name__, __path__)
    return None


def takes(device: str) -> bool:
    """Whether tensors on a device of this type can go there."""
    return device == ("cpu" if interpreting() else "cuda")


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    import triton

    interpret: bool = triton.knobs.runtime.interpret
    return interpret
