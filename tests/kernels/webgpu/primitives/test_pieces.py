# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in pieces, as those that are larger than what a kernel sees of a buffer."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.memory import allocate
from blockscale.kernels.webgpu.primitives import pieces as module
from blockscale.kernels.webgpu.primitives.pieces import STEP, Piece, pieces
from tests.kernels.webgpu.equal import hard, wrong

TERNARY = "ternary:token:fp32"


def test_pieces_are_neighbours_and_begin_at_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "largest", lambda bits, step=STEP: 2 * STEP)
    found = list(pieces(5 * STEP + 3, 32))
    counts = ((0, 2 * STEP), (2 * STEP, 2 * STEP), (4 * STEP, STEP + 3))
    assert found == [Piece(*each) for each in counts]
    memory = allocate(4)
    for bits in range(1, 17):
        assert all(piece.window(memory, bits).start % 256 == 0 for piece in found)
    assert Piece(STEP, 5).window(memory, 6).nbytes == 16


@pytest.mark.parametrize(
    "fmt",
    [
        "int6:group32:fp32:stochastic", "uint8:tensor:fp32:asym",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("int3:group10:fp32", TERNARY)),
    ],
)  # fmt: skip
def test_pieces_have_the_bits_of_the_whole(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(bits: int, step: int = STEP) -> int:
        return STEP // step * step

    monkeypatch.setattr(module, "largest", small)
    monkeypatch.setattr("blockscale.kernels.webgpu.primitives.plan.largest", small)
    assert not wrong(hard((2, STEP // 2 + 4096 + 12), torch.float32, finite=True), fmt)
