# SPDX-License-Identifier: BSD-3-Clause
"""Of numbers of one magnitude, the first decides about the sign."""

import torch

from blockscale.core.profiles.encoders.largest import first_largest


def test_the_first_of_equals() -> None:
    x = torch.tensor([[1.0, -2.0, 2.0, 0.0], [-1.0, 2.0, -2.0, -0.0], [1.0, 1.0, 3.0, 0.0]])
    largest, size = first_largest(x)
    assert largest.tolist() == [1.0, -2.0, 3.0, 0.0]
    assert size.tolist() == [1.0, 2.0, 3.0, 0.0]
