# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers are a function of the seed and of the element's index alone."""

import pytest
import torch
import triton
import triton.language as tl

from blockscale.kernels.cuda.device.random_numbers import random_words
from tests.support.cuda_equal import DEVICE, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(5)
@pytest.mark.parametrize("seed", [(-1, 1), (2**32, 2), (7, 2**34 - 1)], ids=str)
def test_random_numbers(seed: tuple[int, int]) -> None:
    for fmt in ("int8:group20:fp32:stochastic", "e2m1:group7:e8m0/floor:stochastic"):
        x = torch.randn(2, 20)
        assert wrong(x, fmt, torch.tensor(seed)) == []
        assert wrong(x, fmt, torch.tensor(seed[0])) == []


@triton.jit
def _words(group, key, out):
    a, b, c, d = random_words(tl.load(group + tl.arange(0, 2)), tl.load(key + tl.arange(0, 2)))
    at = tl.arange(0, 2) * 4
    tl.store(out + at, a.to(tl.int64))
    tl.store(out + at + 1, b.to(tl.int64))
    tl.store(out + at + 2, c.to(tl.int64))
    tl.store(out + at + 3, d.to(tl.int64))


def philox(counter: int, key: int) -> list[int]:
    """Philox4x32-10 as its authors write it (Salmon et al., 2011, section 3.3)."""
    words = [counter % 2**32, counter >> 32, 0, 0]
    keys = [key % 2**32, key >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            second >> 32 ^ words[1] ^ keys[0], second % 2**32,
            first >> 32 ^ words[3] ^ keys[1], first % 2**32,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return words


def test_the_generator_is_philox() -> None:
    """Its authors' known answer for zeros, and counters and keys of more than 32 bits."""
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    counters, keys = [0, 2**40 + 12345], [0, 2**62 + 99]
    out = torch.empty(8, dtype=torch.int64, device=DEVICE)
    _words[(1,)](torch.tensor(counters, device=DEVICE), torch.tensor(keys, device=DEVICE), out)
    assert out.tolist() == [*philox(0, 0), *philox(counters[1], keys[1])]
