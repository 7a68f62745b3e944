# SPDX-License-Identifier: BSD-3-Clause
"""Device code in Gluon, below Triton, for Hopper's own instructions, and whether it can run here.

The files of this folder are imported when first used.
"""

import os
import warnings
from functools import cache

import torch
import triton
from torch import Tensor

from blockscale.kernels.cuda import interpreting

# Whether the kernels of this folder can run: they are written in Gluon, which Triton calls
# experimental, so they are used with the versions of Triton that they were tested with.

TESTED = ("3.6",)  # versions of Triton


@cache
def unusable(device: int) -> str | None:
    """Why the kernels for Hopper cannot run on this GPU, or None if they can.

    BLOCKSCALE_GLUON=1 lets a Triton run them that they were not tested with, 0 none. Raises
    ValueError for other texts.
    """
    wish = os.environ.get("BLOCKSCALE_GLUON", "")
    if wish not in ("", "0", "1"):
        raise ValueError(
            f"BLOCKSCALE_GLUON is {wish!r}: expected 1 (use the Hopper kernels with any "
            "Triton) or 0 (never use them); unset it to use them with the Triton versions "
            "that they were tested with"
        )
    if interpreting():
        return "Triton's interpreter does not run Gluon"
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        return f"compute capability {major}.{minor} is not 9.0"
    if wish == "0":
        return "BLOCKSCALE_GLUON is 0"
    version = ".".join(triton.__version__.split(".")[:2])
    if version in TESTED or wish == "1":
        return None
    reason = f"Triton {version} is not among those they were tested with: {', '.join(TESTED)}"
    warnings.warn(
        f"blockscale's kernels for Hopper are left out: {reason}. Linear layers use slower "
        "kernels; set BLOCKSCALE_GLUON=1 to use the Hopper kernels anyway, 0 to silence this "
        "warning",
        stacklevel=2,
    )
    return reason


def readable(codes: Tensor) -> bool:
    """Whether the copy engine can read codes [n, bytes]: rows begin at multiples of 16 bytes."""
    at = codes.data_ptr() | codes.stride(0) * codes.itemsize
    return codes.stride(-1) == 1 and at % 16 == 0


def can_run(codes: Tensor) -> bool:
    """Whether the kernels can run on these codes [n, bytes], where they are."""
    return codes.is_cuda and unusable(codes.device.index or 0) is None and readable(codes)
