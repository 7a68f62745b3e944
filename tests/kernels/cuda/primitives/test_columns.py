# SPDX-License-Identifier: BSD-3-Clause
"""The kernel for columns, started by itself: a later column makes up for each earlier one."""

import pytest
import torch

from blockscale.kernels.cuda.primitives.columns import round_strip
from blockscale.kernels.cuda.primitives.form import form
from tests.support.cuda_equal import DEVICE


@pytest.mark.parametrize("columns", [8, 16])
def test_errors_are_taken_on(columns: int) -> None:
    """Whole numbers, rounded with a step of 2; the second row has all of the first's error, the
    third half of it and none of the second's."""
    n = 11
    pending = torch.arange(3 * n, dtype=torch.float64).reshape(3, n).to(DEVICE) - 16
    wanted = pending.clone()
    coupling = torch.tensor([[9, 1, 0.5], [9, 9, 0], [9, 9, 9]], dtype=torch.float64).to(DEVICE)
    scale = torch.full((3, n), 2.0, device=DEVICE)
    codes = torch.full((3, n), 99, dtype=torch.uint8, device=DEVICE)
    values, errors = scale.clone(), pending.clone()
    round_strip[(-(-n // columns),)](
        pending, None, coupling, codes, values, errors, scale, None, None, None, 1, 3, n,
        spec=form("int8:group1:fp32").spec, columns=columns, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    expected = wanted.clone()
    for j in range(3):
        value = (expected[j] / 2).round() * 2  # to even, too
        assert torch.equal(values[j].double(), value)
        assert torch.equal(codes[j].view(torch.int8).double() * 2, value)
        error = expected[j] - value
        assert torch.equal(errors[j], error)
        for later in range(j + 1, 3):
            expected[later] -= error * coupling[j, later]
    assert torch.equal(pending, expected) and not torch.equal(pending, wanted)
