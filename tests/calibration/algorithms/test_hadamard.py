# SPDX-License-Identifier: BSD-3-Clause
"""Rotations: which size, which signs, when not; and all transforms through bs.calibrate."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration import algorithms
from blockscale.calibration.algorithms.awq import AWQ
from blockscale.calibration.algorithms.hadamard import Hadamard
from blockscale.calibration.algorithms.smoothquant import SmoothQuant
from blockscale.calibration.calibrate import calibrate
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.parse import parse
from blockscale.layers.before import random_signs
from tests.calibration.algorithms.transforms import error, outlying, stats_of

INT8, INT4 = "int8_channel", "int4:token:fp32"


def prepared(transform: Hadamard, weight, x, layer: str = "layer"):
    return transform.prepare(weight, parse(INT8), parse(INT4), stats_of(x), layer)


@pytest.mark.parametrize(("k", "size"), [(24, 8), (64, 64), (96, 32), (130, 2), (384, 128)])
def test_the_largest_power_of_two_that_divides(k: int, size: int) -> None:
    weight, x = outlying(k=k)
    before, told = prepared(Hadamard(), weight, x)
    assert (before.fmt, before.features) == (f"rotate:{size}", k)
    assert told[0].startswith(f"rotated by {size} (error of its output 0.")
    assert error(before, weight, x, INT8, INT4) < error(None, weight, x, INT8, INT4)


def test_what_does_not_fit_says_why() -> None:
    weight, x = outlying(k=25)
    assert prepared(Hadamard(), weight, x) == (None, ["not rotated: 25 features are an odd number"])
    weight, x = outlying()
    why = ["not rotated: 24 features are not a multiple of 16"]
    assert prepared(Hadamard(16), weight, x) == (None, why)
    assert prepared(Hadamard(4), weight, x)[0].fmt == "rotate:4"


def test_a_rotation_that_hurts_is_left_out() -> None:
    """Inputs and weights that the formats hold, all but one, as they are."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (4, 8), generator=draw).float()
    x = torch.randint(-7, 8, (9, 8), generator=draw).float()
    weight[:, 0], x[:, 1], weight[0, 3] = 127, 7, 5.4
    before, told = prepared(Hadamard(), weight, x)
    assert before is None
    assert told[0].startswith("not transformed: the error of its output would be ")


def test_signs_are_those_of_the_layer() -> None:
    weight, x = outlying()
    for layer in ("a", "b"):
        before, _ = prepared(Hadamard(seed=3), weight, x, layer)
        assert before.fmt == "rotate:8:signs"
        assert torch.equal(before.signs, random_signs(24, named_seed(3, layer)))
    assert not torch.equal(*(random_signs(24, named_seed(3, layer)) for layer in "ab"))


def test_a_convolution_rotates_its_channels() -> None:
    weight, x = outlying()
    stats = replace(stats_of(x), places=3)
    before, _ = Hadamard().prepare(weight, parse(INT8), parse(INT4), stats, "layer")
    assert (before.features, before.fmt) == (8, "rotate:8")


def test_errors_and_names() -> None:
    for size in (0, 1, 3, -4, 2.5, "big"):
        with pytest.raises(ValueError, match="size must be a power of two >= 2, or None, got"):
            Hadamard(size)
    assert algorithms.transforms("hadamard:64").size == 64
    assert algorithms.transforms("hadamard").size is None
    assert algorithms.transforms().__class__ is type(None)
    with pytest.raises(ValueError, match=r"choose from .*awq, .*hadamard, .*smoothquant"):
        algorithms.transforms("spin")


# --- all of them, through calibration


class Net(nn.Module):
    """Linear layers, convolutions and a table, between which features have very different sizes."""

    def __init__(self):
        super().__init__()
        self.table, self.first = nn.Embedding(30, 32), nn.Linear(32, 48)
        self.conv, self.conv2 = nn.Conv1d(48, 16, 3, padding=1), nn.Conv1d(16, 16, 3, groups=4)
        self.odd = nn.Linear(16, 5)
        self.register_buffer("sizes", 1 + 20 * (torch.arange(48) % 24 == 5))

    def forward(self, ids):
        y = torch.relu(self.first(self.table(ids) * self.sizes[:32])) * self.sizes
        y = torch.relu(self.conv(y.movedim(1, -1)))
        return self.odd(self.conv2(y).movedim(-1, 1))


TRANSFORMS = [SmoothQuant(), SmoothQuant((0.3, 0.6), pow2=True), AWQ(8), Hadamard(seed=1), "awq:4"]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=["smooth", "smooth2", "awq", "had", "named"])
def test_calibration_saves_and_loads(transform, tmp_path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    batches = [torch.randint(30, (4, 9)) for _ in range(3)]
    recipe = bs.Recipe("int8_channel", input="int5:tensor:fp32")
    outputs, x = [], torch.randint(30, (8, 9))
    for change in (None, transform):
        quantized = copy.deepcopy(model)
        ledger = calibrate(quantized, batches, recipe, "min_max", transform=change, progress=False)
        outputs.append(quantized(x))
    expected = model(x)
    plain, better = ((y - expected).square().sum() for y in outputs)
    assert better < 0.9 * plain
    befores = {n: m.before for n, m in quantized.named_modules() if hasattr(m, "before")}
    assert befores["table"] is None  # its input is indices
    assert befores["conv2"] is None  # its groups see different channels
    assert befores["conv"].features == 48
    for name in ("first", "conv", "odd"):
        told = "alpha" in ledger[name].details or "rotated" in ledger[name].details
        assert told == (befores[name] is not None)
    assert befores["first"] is not None
    bs.save(quantized, tmp_path / "m")
    assert torch.equal(bs.load(Net().eval(), tmp_path / "m")(x), outputs[1])
