# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_linear_integers.py: `exact`, `near`, `NEVER_WRONG`, ….
"""

import numpy as np
import torch
from torch import Tensor

from blockscale.core.pack import pack
from blockscale.core.parse import parse

NEVER_WRONG = 4 * 2.0**-24  # one rounding to float32, two scales, the sum with the bias


def weight_of(codes: Tensor, fmt: str, scale: Tensor, zero_point: Tensor | None = None) -> tuple:
    return pack(codes, parse(fmt).element), scale, zero_point, None


def exact(x: Tensor, w: Tensor) -> Tensor:
    """Codes [m, k] and [n, k] -> their products' sums as int64, but float64 to scale them."""
    return torch.from_numpy(x.numpy().astype(np.int64) @ w.numpy().astype(np.int64).T).double()


def near(y: Tensor, expected: Tensor) -> None:
    assert ((y.double() - expected).abs() <= NEVER_WRONG * expected.abs()).all()
