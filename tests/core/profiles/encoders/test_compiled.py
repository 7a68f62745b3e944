# SPDX-License-Identifier: BSD-3-Clause
"""Float32 as compiled C has it, against numpy's, one number at a time."""

import numpy as np
import torch

from blockscale.core.profiles.encoders.compiled import nearest_int, ordered_sum, square_root


def test_a_sum_is_in_order() -> None:
    terms = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])
    assert ordered_sum(terms).item() == 0.0  # each 1 is lost; together they are not
    assert ordered_sum(terms.flip(0)).item() == 2.0
    x = torch.randn(40, 7)
    total = np.zeros(7, dtype=np.float32)
    for row in x.numpy():
        total = total + row
    assert ordered_sum(x).tolist() == total.tolist()


def test_nearest_int() -> None:
    x = torch.tensor([0.5, 1.5, -0.5, -2.5, 3.49999, 4194303.0])
    assert nearest_int(x).tolist() == [0, 2, 0, -2, 3, 4194303]
    x = torch.linspace(-1000, 1000, 4001)  # halves and quarters among them
    assert torch.equal(nearest_int(x), x.round().int())
    # beyond 2^22 as in C: what the last bits say
    assert nearest_int(torch.tensor([float("inf"), float("nan")])).tolist() == [-(2**22), 0]


def test_roots_are_rounded_once() -> None:
    x = torch.rand(20000) * torch.linspace(-60, 60, 20000).exp2()
    expected = np.sqrt(x.numpy())  # IEEE 754: correctly rounded
    assert square_root(x).numpy().tobytes() == expected.tobytes()
