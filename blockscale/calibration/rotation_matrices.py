# SPDX-License-Identifier: BSD-3-Clause
"""Hadamard matrices of many orders, and orthogonal matrices made of them."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from blockscale.calibration.residual_stream import Norm, ResidualStream, UnrotatableError, Use
from blockscale.core.arithmetic import philox
from blockscale.layers.before.rotate import random_signs
from blockscale.ops.seed import seed_tensor

# What the parameters of a model become when its residual stream is rotated.


def head_sizes(stream: ResidualStream) -> set[int]:
    """The sizes of heads whose values are rotated."""
    return {use.heads for use in stream.uses if use.heads}


def rotate(
    model: nn.Module, stream: ResidualStream, rotation: Tensor, heads: Mapping[int, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's name and what it becomes, in R's dtype: gains folded, then x' = x R.

    rotation: R [size, size]; heads: {size of a head: its rotation [size, size]}.
    """
    through: dict[str, list[Use]] = {}
    for use in stream.uses:
        through.setdefault(use.parameter, []).append(use)
    for name, uses in through.items():
        parameter = model.get_parameter(name).detach()
        tensor = parameter.to(rotation.dtype)
        for use in uses:
            by = heads[use.heads] if use.heads else rotation
            gain = None if use.norm is None else gain_of(model, use.norm)
            tensor = _through(tensor, use, by.to(tensor), gain)
        yield name, tensor
    for norm in stream.norms:
        yield from _norm(model, norm, rotation)


def gain_of(model: nn.Module, norm: Norm) -> Tensor:
    """What a norm multiplies by, in float64."""
    weight = model.get_parameter(f"{norm.name}.weight").detach().to(torch.float64)
    return weight + 1 if norm.adds_one else weight


def _through(tensor: Tensor, use: Use, by: Tensor, gain: Tensor | None) -> Tensor:
    """The tensor with one dimension multiplied by the gain and by the rotation."""
    last = tensor.movedim(use.dim, -1)
    if gain is not None:
        last = last * gain.to(last)
    pieces = last.unflatten(-1, (-1, by.shape[0]))
    return (pieces @ by).flatten(-2).movedim(-1, use.dim)


def _norm(model: nn.Module, norm: Norm, rotation: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A norm of gain 1. Its bias, before the gain that goes, is rotated as the stream is."""
    gain = gain_of(model, norm)
    yield f"{norm.name}.weight", torch.full_like(gain, 0.0 if norm.adds_one else 1.0)
    bias = getattr(model.get_submodule(norm.name), "bias", None)
    if isinstance(bias, Tensor):
        bias = bias.detach().to(gain)
        if bool(((gain == 0) & (bias != 0)).any()):
            raise UnrotatableError(f"{norm.name} has a bias where its gain is 0")
        before = torch.where(gain == 0, 0.0, bias / gain)
        yield f"{norm.name}.bias", before.to(rotation.dtype) @ rotation.to(before.device)


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
    for names in range(power + 1):
        order = odd << names
        if order <= max(SMALL, 2) and (result := _paley(order)) is not None:
            return torch.kron(_sylvester(1 << (power - names)), result)
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
    result = hadamard(size)
    assert result is not None
    rotation = result / size**0.5
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
    noise = philox.uniform(torch.Size([n, n]), seed_tensor(seed, cpu), cpu).to(torch.float64)
    q, r = torch.linalg.qr(noise - 0.5)
    return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).contiguous()


def _sylvester(n: int) -> Tensor:
    result = torch.ones(1, 1, dtype=torch.float64)
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while result.shape[0] < n:
        result = torch.kron(two, result)
    return result


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
