# SPDX-License-Identifier: BSD-3-Clause
"""Searches for scales: what they promise. Their bytes are in producers/test_gguf.py."""

import pytest
import torch

from blockscale.core.profiles.encoders import ggml_search as search
from blockscale.core.profiles.encoders.ggml_search import Trials

TRIALS = Trials(15, -1.0, 0.1, 20, absolute=False)


@pytest.mark.parametrize("find", [search.symmetric, search.refined])
def test_a_search_is_no_worse_than_its_first_trial(find) -> None:
    x = torch.randn(16, 200)
    scale, codes = find(x, 4)
    top, _ = search.first_largest(x)
    first = top / -4
    plain = (x / first).round().clamp(-4, 3)
    weights = x * x
    found = (weights * (x - scale * codes) ** 2).sum(0)
    begun = (weights * (x - first * plain) ** 2).sum(0)
    assert bool((found <= begun * 1.0001).all())
    assert bool((found < begun * 0.99).any())


@pytest.mark.parametrize("find", [search.symmetric, search.refined])
def test_zeros_have_no_scale(find) -> None:
    scale, codes = find(torch.full((16, 2), 1e-16), 4)
    assert scale.tolist() == [0.0, 0.0]
    assert bool((codes == -4).all())  # bytes of 0, as ggml leaves them


def test_scale_and_minimum() -> None:
    x = torch.randn(32, 50)
    scale, minus, codes = search.with_minimum(x, x.abs(), TRIALS)
    assert bool((minus >= 0).all()) and bool((scale > 0).all())
    assert int(codes.min()) >= 0 and int(codes.max()) <= 15
    assert float((x - (scale * codes - minus)).abs().max()) < 0.4


def test_a_constant_block() -> None:
    scale, minus, codes = search.with_minimum(torch.full((32, 1), -2.0), torch.ones(32, 1), TRIALS)
    assert (scale.item(), minus.item(), codes.any().item()) == (0.0, 2.0, False)
    scale, minus, _ = search.with_minimum(torch.full((32, 1), 3.0), torch.ones(32, 1), TRIALS)
    assert minus.item() == 0.0 and scale.item() * 15 == pytest.approx(3.0)
