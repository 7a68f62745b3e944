# SPDX-License-Identifier: BSD-3-Clause
"""Seeds of stochastic rounding: what they may be, and that nothing else draws."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.ops.seed import seed_tensor
from tests.support.ops_tensor import STOCHASTIC, bits, parts


def test_seeds() -> None:
    x = torch.randn(6, 8)
    first = parts(bs.quantize(x, STOCHASTIC, seed=7))
    for seed in (torch.tensor(7), torch.tensor([7, 0]), [7, 0]):
        assert parts(bs.quantize(x, STOCHASTIC, seed=seed)) == first
    assert parts(bs.quantize(x, STOCHASTIC, seed=8)) != first
    rows = bs.quantize(x[2:], STOCHASTIC, seed=torch.tensor([7, 16]))  # a shard knows its place
    assert bits(rows.codes) == bits(bs.quantize(x, STOCHASTIC, seed=7).codes[2:])
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([parts(bs.quantize(x, STOCHASTIC)) for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]
    before = torch.get_rng_state()
    bs.quantize(x, "int8_token")
    bs.choose_qparams(x, STOCHASTIC)
    assert torch.equal(torch.get_rng_state(), before)  # nothing else draws


@pytest.mark.parametrize(
    "seed",
    [torch.tensor(7.0), torch.tensor([7]), torch.tensor([1, 2, 3]), 1.5, "7", [1, 2, 3], 2**63],
)
def test_bad_seeds(seed) -> None:
    with pytest.raises((TypeError, ValueError)):
        bs.quantize(torch.randn(6, 8), STOCHASTIC, seed=seed)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0, np.int32(5), np.int64(-1)])
def test_what_64_bits_hold(seed) -> None:
    made = seed_tensor(seed, torch.device("cpu"))
    assert (made.dtype, made.shape, made.item()) == (torch.int64, (), int(seed))


@pytest.mark.parametrize(
    ("seed", "error", "words"),
    [
        (-(2**63) - 1, ValueError, "seed must fit in 64 bits, got -9223372036854775809"),
        (True, TypeError, "seed must be an int, .* got True"),
        (torch.tensor(7, dtype=torch.int32), ValueError, r"int64 .* found torch.int32 \(\)"),
        (torch.zeros(3, dtype=torch.int64), ValueError, r"found torch.int64 \(3,\)"),
    ],
)
def test_messages(seed, error, words: str) -> None:
    with pytest.raises(error, match=words):
        seed_tensor(seed, torch.device("cpu"))
