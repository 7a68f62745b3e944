# SPDX-License-Identifier: BSD-3-Clause
"""Device code of tiles: which program has which tile. The products: test_tile.py."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from blockscale.kernels.cuda.matmul.tile_kernel import GROUP, place
from tests.support.cuda_equal import DEVICE


@triton.jit
def _places(out, rows, n, BM: tl.constexpr, BN: tl.constexpr):  # noqa: N803
    pid = tl.program_id(0)
    pm, pn = place(pid, rows, n, BM, BN)
    tl.store(out + 2 * pid, pm)
    tl.store(out + 2 * pid + 1, pn)


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (16, 33), (130, 70), (16 * 8, 16), (16 * 17, 100)])
def test_every_tile_has_a_program(rows: int, n: int) -> None:
    """Each once; and in a run of programs, no more tiles of rows than share what they read."""
    down, across = -(-rows // 16), -(-n // 32)
    out = torch.full((down * across, 2), -1, dtype=torch.int32, device=DEVICE)
    _places[(down * across,)](out, rows, n, BM=16, BN=32)
    each = [tuple(pair) for pair in out.tolist()]
    assert sorted(each) == [(m, n) for m in range(down) for n in range(across)]
    run = GROUP.value * across
    for first in range(0, len(each), run):
        assert len({m for m, _ in each[first : first + run]}) <= GROUP.value
