# SPDX-License-Identifier: BSD-3-Clause
"""Philox4x32-10: the authors' known answers, independence of layout, and unbiased rounding."""

import pytest
import torch

from blockscale.core import reference as R
from blockscale.core.arithmetic.philox import named_seed, philox, uniform
from blockscale.core.parse import parse
from tests.support import exact

CPU = torch.device("cpu")
# Random123 1.14 (Salmon et al., SC 2011), tests/kat_vectors, "philox4x32 10": counter, key, words.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
SEEDS = [0, 1, -1, 2**31, 2**32, 2**63 - 1, -(2**63), 0x0123456789ABCDEF]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def draws(count: int, *seed: int) -> list[float]:
    return uniform(torch.Size([count]), torch.tensor(seed), CPU).double().tolist()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    ours = philox(tuple(map(torch.tensor, words(counter))), tuple(map(torch.tensor, words(key))))
    assert [int(word) for word in ours] == words(expected)
    assert exact.philox(words(counter), words(key)) == words(expected)  # the oracle too


def test_many_counters_at_once() -> None:
    counters = torch.arange(40).reshape(4, 10) * 0x0F0F0F0F % 2**32
    key = (torch.tensor(7), torch.tensor(2**32 - 1))
    ours = torch.stack(philox(tuple(counters), key)).T.tolist()
    assert ours == [exact.philox(c, [7, 2**32 - 1]) for c in counters.T.tolist()]


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_is_the_documents(seed: int) -> None:
    # Across both 32-bit words of the counter: i >> 2 passes 2^32 at i = 2^34.
    for first in (0, 1, 2, 3, 2**34 - 3, 2**40 + 5):
        expected = [float(exact.uniform(seed, first + i)) for i in range(9)]
        assert draws(9, seed, first) == expected
    assert draws(9, seed) == draws(9, seed, 0)


def test_a_seed_of_rank_0() -> None:
    assert uniform(torch.Size([5]), torch.tensor(3), CPU).tolist() == draws(5, 3)
    assert uniform(torch.Size([]), torch.tensor(3), CPU).tolist() == draws(1, 3)[0]
    assert uniform(torch.Size([2, 0]), torch.tensor(3), CPU).shape == (2, 0)


def test_uniform_is_below_one_and_24_bits() -> None:
    u = torch.tensor(draws(4096, 11), dtype=torch.float64) * 2**24
    assert torch.equal(u, u.floor())
    assert 0 <= u.min() < u.max() < 2**24
    assert u.unique().numel() > 4090  # 4096 draws of 2^24: about half a collision is expected


@pytest.mark.parametrize("fmt", ["int4:tensor:fp32:stochastic", "e2m1:tensor:e8m0:stochastic"])
def test_codes_do_not_depend_on_strides_or_shards(fmt: str) -> None:
    format_, seed = parse(fmt), torch.tensor(42)
    x = torch.randn(12, 10)
    qparams = R.choose_qparams(x, format_)
    whole = R.quantize(x, qparams, format_, seed)
    strided = torch.stack([x, x], -1)[..., 0]
    assert torch.equal(R.quantize(x.t().contiguous().t(), qparams, format_, seed), whole)
    assert torch.equal(R.quantize(strided, qparams, format_, seed), whole)
    for rows in (1, 5, 12):  # slabs along dimension 0 know only their first element's index
        slabs = [
            R.quantize(x[i : i + rows], qparams, format_, torch.tensor([42, i * 10]))
            for i in range(0, 12, rows)
        ]
        assert torch.equal(torch.cat(slabs), whole)
    assert not torch.equal(R.quantize(x, qparams, format_, torch.tensor(43)), whole)


@pytest.mark.parametrize("value", [0.125, 0.5, -0.3, 2.9, -5.01])
def test_rounding_is_unbiased(value: float) -> None:
    # A Bernoulli variable of p = fraction: the mean of n has deviation sqrt(p (1 - p) / n).
    count, fmt = 20_000, parse("int8:tensor:fp32:stochastic")
    one = R.QParams(torch.tensor([1.0]))
    x = torch.full((count,), value)
    codes = R.quantize(x, one, fmt, torch.tensor(1)).double()
    fraction = abs(value) % 1
    sigma = (fraction * (1 - fraction) / count) ** 0.5
    assert abs(codes.mean().item() - value) < 5 * sigma
    assert codes.unique().numel() == 2


def test_neighbours_are_independent() -> None:
    u = torch.tensor(draws(20_000, 9)) - 0.5
    for lag in (1, 2, 3, 4, 128):
        correlation = (u[lag:] * u[:-lag]).mean() * 12  # a uniform variable has variance 1/12
        assert abs(correlation) < 5 / 20_000**0.5


def test_stochastic_needs_a_seed() -> None:
    fmt = parse("int8:tensor:fp32:stochastic")
    with pytest.raises(ValueError, match=r"int8:tensor:fp32:stochastic: .*needs a seed"):
        R.quantize(torch.ones(3), R.QParams(torch.tensor([1.0])), fmt)


def test_a_seed_belongs_to_a_name():
    assert named_seed(0, "a.weight") == named_seed(0, "a.weight") == 285011324014053570
    seeds = {named_seed(seed, name) for seed in (0, 1) for name in ("a", "b", "1:a")}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
