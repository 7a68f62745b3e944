# SPDX-License-Identifier: BSD-3-Clause
"""Hadamard matrices of many orders, and orthogonal matrices made of them."""

import torch
from torch import Tensor

from blockscale.core.arithmetic import philox
from blockscale.layers.before.rotate import random_signs
from blockscale.ops.seed import seed_tensor

SMALL = 256  # orders up to this are looked for, times a power of two


def hadamard(n: int) -> Tensor | None:
    """[n, n] of +1 and -1 in float64 with H H^T = n, or None where no construction here serves.

    Orders m 2^p: Sylvester's, doubled from Paley's of order m (Paley 1933, "On orthogonal
    matrices"), where m - 1 is a prime of 3 modulo 4, or m / 2 - 1 one of 1 modulo 4.
    """
    if n < 1 or (n > 2 and n % 4):
        return None
    odd, power = n, 0
    while odd % 2 == 0:
        odd, power = odd // 2, power + 1
    for taken in range(power + 1):
        order = odd << taken
        if order <= max(SMALL, 2) and (found := _paley(order)) is not None:
            return torch.kron(_sylvester(1 << (power - taken)), found)
    return None


def orthogonal(n: int, seed: int, *, keeps_mean: bool = False) -> Tensor:
    """A randomized Hadamard matrix [n, n], orthonormal, in float64: the same for the same seed.

    Where no Hadamard matrix of this order is known here, the largest of a divisor of n times a
    random orthogonal matrix stands for it (Kronecker's product).

    keeps_mean: vectors of equal elements are left as they are, so that what subtracts the mean
        commutes with the rotation.
    """
    if keeps_mean:
        return _keeping_mean(n, seed)
    size = next(d for d in range(n, 0, -1) if n % d == 0 and hadamard(d) is not None)
    found = hadamard(size)
    assert found is not None
    rotation = found / size**0.5
    if size < n:
        rotation = torch.kron(_random(n // size, seed + 1), rotation)
    return random_signs(n, seed).to(torch.float64)[:, None] * rotation


def _keeping_mean(n: int, seed: int) -> Tensor:
    """M + B Q B^T: the mean as it is, and a rotation Q of the n - 1 directions B beside it."""
    rotation = orthogonal(n, seed)
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    ones = torch.full((n, 1), n**-0.5, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64)
    # the nearest orthogonal matrix to the rotation among those that keep `ones` (Procrustes)
    beside = torch.linalg.qr(torch.cat((ones, eye[:, 1:]), 1))[0][:, 1:]
    u, _, v = torch.linalg.svd(beside.T @ rotation @ beside)
    return ones @ ones.T + beside @ (u @ v) @ beside.T


def _random(n: int, seed: int) -> Tensor:
    """A random orthogonal matrix: Q of uniform numbers, its signs fixed by R's diagonal."""
    cpu = torch.device("cpu")
    drawn = philox.uniform(torch.Size([n, n]), seed_tensor(seed, cpu), cpu).to(torch.float64)
    q, r = torch.linalg.qr(drawn - 0.5)
    return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).contiguous()


def _sylvester(n: int) -> Tensor:
    made = torch.ones(1, 1, dtype=torch.float64)
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while made.shape[0] < n:
        made = torch.kron(two, made)
    return made


def _paley(order: int) -> Tensor | None:
    """The matrix of orders 1 and 2, and Paley's first and second construction, or None."""
    if order <= 2:
        return _sylvester(order)
    if (q := order - 1) % 4 == 3 and _is_prime(q):
        border = torch.ones(order, dtype=torch.float64)
        skew = torch.zeros(order, order, dtype=torch.float64)
        skew[0, 1:], skew[1:, 0], skew[1:, 1:] = border[1:], -border[1:], _residues(q)
        return skew + torch.eye(order, dtype=torch.float64)
    if order % 2 == 0 and (q := order // 2 - 1) % 4 == 1 and _is_prime(q):
        conference = torch.zeros(q + 1, q + 1, dtype=torch.float64)
        conference[0, 1:], conference[1:, 0], conference[1:, 1:] = 1.0, 1.0, _residues(q)
        two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        other = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        eye = torch.eye(q + 1, dtype=torch.float64)
        return torch.kron(conference, two) + torch.kron(eye, other)
    return None


def _residues(q: int) -> Tensor:
    """Jacobsthal's matrix [q, q]: 1 where i - j is a square modulo q, 0 at i = j, else -1."""
    character = -torch.ones(q, dtype=torch.float64)
    character[0] = 0
    character[[i * i % q for i in range(1, q)]] = 1
    index = torch.arange(q)
    return character[(index[:, None] - index[None, :]) % q]


def _is_prime(q: int) -> bool:
    return q > 1 and all(q % d for d in range(2, int(q**0.5) + 1))
