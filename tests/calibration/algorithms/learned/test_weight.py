# SPDX-License-Identifier: BSD-3-Clause
"""One learned weight: it begins with the start's codes, and what it stores is what it meant."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms.learned.weight import LearnedWeight, Rates
from blockscale.ops.tensor import QTensor
from tests.calibration.algorithms.learned.tasks import FORMATS

pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel")
RATES = Rates(0.2, 0.1, 0.1)


def weight_of(text: str, seed: int = 0) -> tuple[Tensor, QTensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, 32, generator=generator) * torch.rand(12, 1, generator=generator)
    return weight, bs.quantize(weight, text)


@pytest.mark.parametrize("text", FORMATS)
def test_codes_decode_to_the_value_bit_for_bit(text: str) -> None:
    weight, start = weight_of(text)
    learned = LearnedWeight(weight, start)
    assert torch.equal(learned.value, start.dequantize())  # before anything is learned
    assert torch.equal(learned.finished().dequantize(), start.dequantize())
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        learned.value.grad = torch.randn(weight.shape, generator=generator)
        learned.step(RATES)
        assert learned.value.grad is None
        q = learned.finished()
        assert torch.equal(q.dequantize(), learned.value)
        assert q.format == start.format and q.shape == start.shape
    assert not torch.equal(learned.value, start.dequantize())
    assert bool(learned.value.isfinite().all())


@pytest.mark.parametrize(
    "text", ["int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4", "nf4:group8:fp32"]
)
def test_it_begins_with_codes_that_are_not_the_nearest(text: str) -> None:
    weight, start = weight_of(text)
    other = bs.quantize(weight + 0.7 * torch.randn(12, 32) * weight.abs().mean(), text)
    learned = LearnedWeight(weight, QTensor(other.packed, other.qparams, other.format, 32))
    assert torch.equal(learned.value, other.dequantize())
    assert not torch.equal(other.dequantize(), start.dequantize())


@pytest.mark.parametrize(
    "text",
    [
        "int4:group8:fp32",
        "int4:group8:fp32:signed",
        "mxfp4",
        "nf4:group8:fp32",
        "int4:group8:fp32:offset",
    ],
)
def test_steps_lower_a_loss(text: str) -> None:
    """Planted bug: with the sign of the update turned round, this fails."""
    weight, start = weight_of(text)
    mixing = torch.randn(32, 32, generator=torch.Generator().manual_seed(2)) / 32**0.5
    learned = LearnedWeight(weight, start)

    def loss() -> Tensor:
        return ((learned.value - weight) @ mixing).square().sum()

    before = float(loss().detach())
    least = before
    for done in range(60):
        loss().backward()
        learned.step(Rates(0.01 * (1 - done / 60), 0.002, 0.0))
        least = min(least, float(loss().detach()))
    assert least < 0.95 * before


def test_state_brings_everything_back() -> None:
    weight, start = weight_of("book3:group8:fp32")
    learned = LearnedWeight(weight, start)
    state = learned.state()
    learned.value.grad = torch.randn(12, 32)
    learned.step(RATES)
    changed, value = learned.state(), learned.value.detach().clone()
    learned.restore(state)
    assert torch.equal(learned.value, start.dequantize())
    learned.restore(changed)
    assert torch.equal(learned.value, value)
    assert torch.equal(learned.finished().dequantize(), value)


def test_a_learned_codebook_moves_and_its_codes_follow() -> None:
    weight, start = weight_of("book2:tensor:fp32")
    learned = LearnedWeight(weight, start)
    for _ in range(40):
        (learned.value - weight - 0.1).square().sum().backward()
        learned.step(Rates(1e-9, 0.0, 0.02))
    book, old = learned.finished().qparams.book, start.qparams.book
    assert book is not None and old is not None and float((book - old).mean()) > 0


def test_zeros_and_extremes_stay_finite() -> None:
    weight = torch.tensor([[0.0, -0.0, 1e-40, -1e-40] * 8, [3e38, -3e38, 1.0, 0.0] * 8])
    for text in ("int4:group8:fp32", "mxfp4", "nvfp4", "uint4:group8:fp32:asym"):
        learned = LearnedWeight(weight, bs.quantize(weight, text))
        learned.value.grad = torch.ones_like(weight)
        learned.step(RATES)
        assert torch.equal(learned.finished().dequantize(), learned.value)
        assert not bool(learned.value.isnan().any())


@pytest.mark.parametrize("text", ["int4:group8:fp32", "mxfp4", "nf4:group8:fp32"])
def test_codes_that_are_not_the_nearest_outlast_small_steps(text: str) -> None:
    """Drawn to 0.3 gaps they take a fifth of a gap to leave; at 0.49 the first steps undo them."""
    weight, _ = weight_of(text)
    other = bs.quantize(weight + 0.7 * torch.randn(12, 32) * weight.abs().mean(), text)
    for inside, kept in ((0.3, True), (0.49, False)):
        learned = LearnedWeight(weight, other, inside)
        assert torch.equal(learned.value, other.dequantize())
        learned.value.grad = (other.dequantize() - weight).sign()  # back to the nearest
        learned.step(Rates(0.1, 0.0, 0.0))
        assert torch.equal(learned.value, other.dequantize()) == kept
