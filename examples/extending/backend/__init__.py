# SPDX-License-Identifier: BSD-3-Clause
"""A backend: numpy computes on the tensors of the CPU."""

# Goes to:   blockscale/kernels/numpy_arrays/, this file as its __init__.py
# Its test:  tests/kernels/numpy_arrays/: each kernel against the reference, bit for bit.
# By itself: bs.use("numpy_arrays"), its line in bs.hardware() and `blockscale hardware`, with the
#            reason where it cannot run. What it has no kernel for raises under bs.use, and goes to
#            the device's own kernels under bs.use(..., fallback=True).

import importlib.util

from blockscale.core import import_all


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can."""
    if importlib.util.find_spec("numpy") is None:
        return "numpy is not installed: `pip install numpy`"
    import_all(__name__, __path__)
    return None


def takes(device: str) -> bool:
    """Whether tensors on a device of this type can go there."""
    return device == "cpu"
