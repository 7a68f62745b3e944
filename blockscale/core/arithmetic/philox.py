# SPDX-License-Identifier: BSD-3-Clause
"""Counter-based random numbers: the same bits on every device, thread count, tile and shard layout.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import hashlib

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_ROUNDS = 10


def named_seed(seed: int, name: str) -> int:
    """The seed of the tensor `name` in a run: its own, and the same in every process."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # a nonnegative int64


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and low 32 bits of word * factor; int64 wraps around, which keeps all 64 bits."""
    product = word * factor
    return (product >> 32) & _LOW, product & _LOW


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four counter words and two key words (int64, each below 2^32) -> four random words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(shape: torch.Size, seed: Tensor, device: torch.device) -> Tensor:
    """One float32 in [0, 1) for each element of `shape`, a multiple of 2^-24.

    seed: int64 of shape [] (the seed) or [2] (the seed, the index of this tensor's first element
    in the whole tensor: how a shard along dimension 0 gets the whole tensor's numbers).
    """
    seed = seed.to(device=device, dtype=torch.int64).reshape(-1)
    first = seed[1] if seed.shape[0] == 2 else 0
    count = 1
    for size in shape:
        count = count * size
    index = torch.arange(count, device=device, dtype=torch.int64) + first
    group = index >> 2
    zero = torch.zeros_like(group)
    key = (seed[0] & _LOW, (seed[0] >> 32) & _LOW)
    words = torch.stack(philox((group & _LOW, (group >> 32) & _LOW, zero, zero), key))
    word = words.gather(0, (index & 3)[None])[0]
    return ((word >> 8).to(torch.float32) * 2.0**-24).reshape(shape)
