# SPDX-License-Identifier: BSD-3-Clause
"""Rotations, against scipy's Hadamard matrices."""

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor

import blockscale as bs
from blockscale.core.arithmetic import philox
from blockscale.layers.before import Before, Rotate, random_signs
from tests.layers.before.kinds import (
    K,
    kinds,
    same,
    whole,
)


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the bits."""
    with bs.use("reference"):
        yield


def examples(k: int) -> list[Before]:
    sizes = [1 << p for p in range(1, 9) if k % (1 << p) == 0]
    return [Rotate(k, s, signs) for s in sizes for signs in (None, random_signs(k, s))]


def matrix(each: Rotate) -> Tensor:
    """Its matrix for inputs, from scipy: x' = x @ matrix."""
    signs = np.ones(each.features) if each.signs is None else each.signs.numpy()
    block = hadamard(each.size) / 2.0 ** ((each.size.bit_length() - 1) // 2)
    whole = np.kron(np.eye(each.features // each.size), block)
    return torch.from_numpy(signs[:, None] * whole).float()


@pytest.mark.parametrize("k", [2, 8, 24, 96, pytest.param(256, marks=pytest.mark.slow)])
def test_rotations_are_hadamard_matrices(k: int) -> None:
    for each in examples(k):
        h, x, w = matrix(each), whole(5, k), whole(3, k)
        same(each(x), x @ h)
        twice = 1 + (each.size.bit_length() - 1) % 2  # h @ h.T: 2 for odd powers of two
        same(h @ h.T, twice * torch.eye(k))
        same(each.to_weight(w), w @ h / twice)


def test_random_signs() -> None:
    signs = random_signs(4096, 3)
    assert set(signs.tolist()) == {1, -1}
    assert abs(int(signs.sum())) < 256  # four standard deviations
    same(signs, random_signs(4096, 3))
    assert not torch.equal(signs, random_signs(4096, 4))
    same(signs[:100], random_signs(100, 3))
    drawn = philox.uniform(torch.Size([9]), torch.tensor(3), torch.device("cpu"))
    assert signs[:9].tolist() == [-1 if u < 0.5 else 1 for u in drawn.tolist()]  # test_philox.py
    with pytest.raises(TypeError, match="seed must be an int"):
        random_signs(8, 0.5)


def test_sizes_signs_and_inputs_that_do_not_fit() -> None:
    for size in (0, 1, -2, 3, 16, 48):
        with pytest.raises(ValueError, match=f"power of two .* divides 24 features, found {size}"):
            Rotate(K, size)
    odd = random_signs(K, 0)
    for signs in (odd.float(), odd[:-1], torch.where(odd < 0, 0, odd), odd * 2):
        with pytest.raises(ValueError, match=r"expected signs \[24\] of \+1 and -1 in int8"):
            Rotate(K, 8, signs)
    for each in kinds():
        for x in (torch.ones(2, 23), torch.ones(2, 48), torch.ones(())):
            with pytest.raises(ValueError, match=r"expected an input \[\.\.\., 24\], found"):
                each(x)
        for w in (torch.ones(2, 36), torch.ones(K), torch.ones(1, 1, K)):
            with pytest.raises(ValueError, match="k a multiple of 24, found"):
                each.to_weight(w)
        with pytest.raises(TypeError, match="found float64"):
            each(torch.ones(2, K, dtype=torch.float64))
