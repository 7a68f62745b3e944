# SPDX-License-Identifier: BSD-3-Clause
"""K types as encoders: blocks do not influence one another. Bytes: producers/test_gguf.py."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles import ggml as search
from blockscale.core.profiles.encoders import SUPER
from blockscale.core.profiles.ggml import Trials

NAMES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


@pytest.mark.parametrize("name", NAMES)
def test_a_super_block_is_encoded_by_itself(name: str) -> None:
    x = torch.randn(3, 2 * SUPER)
    profile = bs.profile(f"gguf.{name}")
    whole, alone = bs.quantize(x, profile), bs.quantize(x[1:2, SUPER:], profile)
    assert torch.equal(whole.codes[1:2, SUPER:], alone.codes)
    each = alone.qparams.scale.shape[-1]
    assert torch.equal(whole.qparams.scale[1:2, each:], alone.qparams.scale)
    assert torch.equal(whole.qparams.outer[1:2, 1:], alone.qparams.outer)


@pytest.mark.parametrize("name", NAMES)
def test_zeros(name: str) -> None:
    q = bs.quantize(torch.zeros(1, SUPER), bs.profile(f"gguf.{name}"))
    assert not q.dequantize().any()
    assert q.qparams.outer.item() == 0.0


def test_more_bits_are_nearer() -> None:
    x = torch.randn(8, SUPER)
    errors = [
        float((bs.quantize(x, bs.profile(f"gguf.{name}")).dequantize() - x).norm())
        for name in NAMES
    ]
    assert errors == sorted(errors, reverse=True)


# Searches for scales: what they promise. Their bytes are in producers/test_gguf.py.

TRIALS = Trials(15, -1.0, 0.1, 20, absolute=False)


@pytest.mark.parametrize("find", [search.symmetric, search.refine])
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


@pytest.mark.parametrize("find", [search.symmetric, search.refine])
def test_zeros_have_no_scale(find) -> None:
    scale, codes = find(torch.full((16, 2), 1e-16), 4)
    assert scale.tolist() == [0.0, 0.0]
    assert bool((codes == -4).all())  # bytes of 0, as ggml leaves them


def test_scale_and_minimum() -> None:
    x = torch.randn(32, 50)
    scale, minus, codes = search.search_with_minimum(x, x.abs(), TRIALS)
    assert bool((minus >= 0).all()) and bool((scale > 0).all())
    assert int(codes.min()) >= 0 and int(codes.max()) <= 15
    assert float((x - (scale * codes - minus)).abs().max()) < 0.4


def test_a_constant_block() -> None:
    scale, minus, codes = search.search_with_minimum(
        torch.full((32, 1), -2.0), torch.ones(32, 1), TRIALS
    )
    assert (scale.item(), minus.item(), codes.any().item()) == (0.0, 2.0, False)
    scale, minus, _ = search.search_with_minimum(
        torch.full((32, 1), 3.0), torch.ones(32, 1), TRIALS
    )
    assert minus.item() == 0.0 and scale.item() * 15 == pytest.approx(3.0)


# ggml's simple types at their edges. Bytes of other numbers are in producers/test_gguf.py.


def made(name: str, x: torch.Tensor) -> bs.QTensor:
    return bs.quantize(x, bs.profile(f"gguf.{name}"))


def test_minimums_are_not_widened_to_zero() -> None:
    q = made("q4_1", torch.linspace(3.0, 4.5, 32).reshape(1, 32))
    assert q.qparams.offset.item() == 3.0 and q.scale.item() == pytest.approx(0.1, rel=1e-3)
    assert (q.codes.min().item(), q.codes.max().item()) == (0, 15)


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_the_first_zero_is_the_minimum(first: float) -> None:
    x = torch.tensor([first] + [-first] * 31).reshape(1, 32)
    assert made("q5_1", x).qparams.offset.signbit().item() == (str(first) == "-0.0")


def test_signs() -> None:
    x = torch.tensor([1.0, -0.0, 0.0, -3.0] * 32).reshape(1, 128)
    q = made("q1_0", x)
    assert q.codes[0, :4].tolist() == [1, 1, 1, -1]  # -0 >= 0
    assert q.scale.item() == 1.0


def test_halves_of_ternary_go_away_from_zero() -> None:
    x = torch.tensor([2.0, 1.0, -1.0, 0.5]).repeat(64).reshape(1, 256)
    assert made("tq2_0", x).codes[0, :4].tolist() == [1, 1, -1, 0]
    q = made("q2_0", x)
    assert q.codes[0, :4].tolist() == [2, 2, 0, 1] and q.zero_point.unique().tolist() == [1]


def test_the_logarithm_of_mxfp4_is_rounded() -> None:
    """ggml's floor(log2f(4096 - 2^-12)) is 12; the exponent of the number is 11."""
    x = torch.zeros(2, 32)
    x[0, 0], x[1, 0] = 4096 - 2**-12, 4096 - 2**-9
    assert made("mxfp4", x).qparams.scale.flatten().tolist() == [127 + 12 - 2, 127 + 11 - 2]


def test_scales_of_nvfp4() -> None:
    """Half up by bits, subnormals up to 7 / 512, and 448 from the first that round to 256."""
    wanted = torch.tensor([0.0, 2**-11, 2**-10, 7.9 / 512, 1.0625, 247.0, 248.0, 1e6])
    x = torch.zeros(8, 64)
    x[:, 0] = wanted * 6
    found = made("nvfp4", x).qparams.scale[:, 0].tolist()
    assert found == [0, 0, 1, 7, 0x39, 0x77, 0x7E, 0x7E]
