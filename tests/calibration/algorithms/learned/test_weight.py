# SPDX-License-Identifier: BSD-3-Clause
"""One learned weight: it begins with the start's codes, and what it stores is what it meant."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms.learned.weight import (
    Cells,
    Direction,
    LearnedWeight,
    LearningRates,
)
from blockscale.core.block import read_block
from blockscale.ops.tensor import QTensor
from tests.calibration.algorithms.learned.tasks import FORMATS

RATES = LearningRates(0.2, 0.1, 0.1)


def weight_of(text: str, seed: int = 0) -> tuple[Tensor, QTensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, 32, generator=generator) * torch.rand(12, 1, generator=generator)
    return weight, bs.quantize(weight, text)


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:no cpu kernel")
@pytest.mark.parametrize("text", FORMATS)
def test_codes_decode_to_the_value_bit_for_bit(text: str) -> None:
    weight, start = weight_of(text)
    learned = LearnedWeight(weight, start)
    assert torch.equal(learned.value, start.dequantize())  # before anything is learned
    assert torch.equal(learned.result().dequantize(), start.dequantize())
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        learned.value.grad = torch.randn(weight.shape, generator=generator)
        learned.step(RATES)
        assert learned.value.grad is None
        q = learned.result()
        assert torch.equal(q.dequantize(), learned.value)
        assert q.format == start.format and q.shape == start.shape
    assert not torch.equal(learned.value, start.dequantize())
    assert bool(learned.value.isfinite().all())


@pytest.mark.filterwarnings("ignore:no cpu kernel")
@pytest.mark.parametrize(
    "text", ["int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4", "nf4:group8:fp32"]
)
def test_it_begins_with_codes_that_are_not_the_nearest(text: str) -> None:
    weight, start = weight_of(text)
    other = bs.quantize(weight + 0.7 * torch.randn(12, 32) * weight.abs().mean(), text)
    learned = LearnedWeight(weight, QTensor(other.packed, other.qparams, other.format, 32))
    assert torch.equal(learned.value, other.dequantize())
    assert not torch.equal(other.dequantize(), start.dequantize())


@pytest.mark.filterwarnings("ignore:no cpu kernel")
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
        learned.step(LearningRates(0.01 * (1 - done / 60), 0.002, 0.0))
        least = min(least, float(loss().detach()))
    assert least < 0.95 * before


@pytest.mark.filterwarnings("ignore:no cpu kernel")
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
    assert torch.equal(learned.result().dequantize(), value)


@pytest.mark.filterwarnings("ignore:no cpu kernel")
def test_a_learned_codebook_moves_and_its_codes_follow() -> None:
    weight, start = weight_of("book2:tensor:fp32")
    learned = LearnedWeight(weight, start)
    for _ in range(40):
        (learned.value - weight - 0.1).square().sum().backward()
        learned.step(LearningRates(1e-9, 0.0, 0.02))
    book, old = learned.result().qparams.book, start.qparams.book
    assert book is not None and old is not None and float((book - old).mean()) > 0


@pytest.mark.filterwarnings("ignore:no cpu kernel")
def test_zeros_and_extremes_stay_finite() -> None:
    weight = torch.tensor([[0.0, -0.0, 1e-40, -1e-40] * 8, [3e38, -3e38, 1.0, 0.0] * 8])
    for text in ("int4:group8:fp32", "mxfp4", "nvfp4", "uint4:group8:fp32:asym"):
        learned = LearnedWeight(weight, bs.quantize(weight, text))
        learned.value.grad = torch.ones_like(weight)
        learned.step(RATES)
        assert torch.equal(learned.result().dequantize(), learned.value)
        assert not bool(learned.value.isnan().any())


@pytest.mark.filterwarnings("ignore:no cpu kernel")
@pytest.mark.parametrize("text", ["int4:group8:fp32", "mxfp4", "nf4:group8:fp32"])
def test_codes_that_are_not_the_nearest_outlast_small_steps(text: str) -> None:
    """Drawn to 0.3 gaps they take a fifth of a gap to leave; at 0.49 the first steps undo them."""
    weight, _ = weight_of(text)
    other = bs.quantize(weight + 0.7 * torch.randn(12, 32) * weight.abs().mean(), text)
    for inside, kept in ((0.3, True), (0.49, False)):
        learned = LearnedWeight(weight, other, inside)
        assert torch.equal(learned.value, other.dequantize())
        learned.value.grad = (other.dequantize() - weight).sign()  # back to the nearest
        learned.step(LearningRates(0.1, 0.0, 0.0))
        assert torch.equal(learned.value, other.dequantize()) == kept


# Views in which scales broadcast, against the block's own expansion.

BLOCKS = [
    "tensor", "channel0", "channel1", "token", "group4", "group5", "group4@0", "tile2x6", "tile5x5",
    "flat8", "flat7", "flat4@0", "block*x4", "group1",
]  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_spread_and_sums_are_those_of_the_block(name: str) -> None:
    shape, block = (8, 12), read_block(name)
    if block.strided and 96 % block.flat:
        pytest.skip("does not divide")
    cells = Cells(shape, block)
    scale = torch.arange(float(torch.Size(block.scale_shape(shape)).numel()))
    scale = scale.reshape(block.scale_shape(shape))
    x = torch.arange(96.0).reshape(shape)
    expanded = block.expand(scale, shape).expand(shape)
    assert torch.equal(cells.plain(cells.view(x) * cells.expand(scale)), x * expanded)
    sums = cells.sums(cells.view(x))
    assert sums.shape == scale.shape
    for index in range(scale.numel()):
        assert sums.reshape(-1)[index] == x[expanded == index].sum()


@pytest.mark.parametrize("name", ["block2x2x4", "group4", "group5@0"])
def test_three_dimensions(name: str) -> None:
    shape, block = (4, 6, 8), read_block(name)
    cells, x = Cells(shape, block), torch.randn(4, 6, 8, dtype=torch.float64)
    scale = torch.randn(block.scale_shape(shape), dtype=torch.float64)
    direct = (x * block.expand(scale, shape)).sum()
    assert torch.isclose((cells.sums(cells.view(x)) * scale).sum(), direct)


# Where a step goes: against the mean of gradients, by its size in root mean squares.


def test_a_first_step_goes_against_the_gradient_by_the_rate() -> None:
    x, gradient = torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]) * 1e-6
    Direction().move(x, gradient, 0.25, 1.0)
    assert torch.allclose(x, torch.tensor([-0.25, 0.25, -0.25, 0.25]))


def test_what_hardly_matters_hardly_moves() -> None:
    x = torch.zeros(3)
    Direction().move(x, torch.tensor([10.0, 0.1, 0.0]), 0.1, 1.0)
    assert x[0] < -0.1 and -0.01 < x[1] < 0 and x[2] == 0


def test_gradients_that_turn_about_cancel() -> None:
    x, direction = torch.zeros(2), Direction()
    for turn in range(40):
        direction.move(x, torch.tensor([1.0, (-1.0) ** turn]), 0.01, 10.0)
    assert x[0] < -0.3 and abs(float(x[1])) < 0.05


def test_it_stays_within_the_ends_and_takes_gradients_of_0() -> None:
    x, direction = torch.zeros(2), Direction()
    direction.move(x, torch.zeros(2), 0.5, 0.5)
    assert x.tolist() == [0, 0]
    for _ in range(9):
        direction.move(x, torch.tensor([1.0, -1.0]), 0.3, 0.5)
    assert x.tolist() == [-0.5, 0.5]
