# SPDX-License-Identifier: BSD-3-Clause
"""The kernel of codes in memory, alone: bfloat16 codes in blocks, against whole numbers."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.matmul.codes_kernel import multiply_codes
from tests.support.cuda_equal import DEVICE


@pytest.mark.parametrize(("block", "inner"), [(0, 1), (32, 1), (32, 2), (64, 2)])
@pytest.mark.parametrize("k", [96, 128])
def test_whole_numbers_are_exact(block: int, inner: int, k: int) -> None:
    """Sums of each block get its scale; rows and outputs that fill no tile; k that is no tile."""
    rows, n = 20, 18
    x = torch.randint(-8, 9, (rows, k), device=DEVICE).float()
    w = torch.randint(-8, 9, (n, k), device=DEVICE).float()
    steps = 2.0 ** torch.randint(-2, 3, (n, -(-k // (block or k))), device=DEVICE).float()
    out = torch.full((rows, n), 77.0, device=DEVICE)
    factors = torch.arange(1.0, n + 1, device=DEVICE)
    tile = 16
    multiply_codes[(-(-rows // 16) * -(-n // 16),)](
        x.bfloat16(), w.bfloat16(), None, factors, steps if block else None, None, out,
        rows, n, k, k, k, 1, steps.shape[1],
        KIND="bfloat16", BM=16, BN=16, BK=tile, STEPS=-(-k // (tile * (inner if block else 1))),
        BLOCK=block, INNER=inner if block else 1, WHOLE=k % (tile * inner) == 0,
    )  # fmt: skip
    by = steps.repeat_interleave(block, 1)[:, :k] if block else 1.0
    expected = (x.double() @ (w * by).double().T) * factors.double()
    assert torch.equal(out.double(), expected)
