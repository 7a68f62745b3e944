# SPDX-License-Identifier: BSD-3-Clause
"""What products cost, counted by hand and by loops."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.integers.cost import TABLES, OpCost
from tests.graph.lowering.integers.flows import BOTH, fused

LOG4 = "log4:channel0:pow2/nearest"


def costs(model, x, *, rules=None, most=2, **named):
    lowered = bs.graph.lower(fused(model, x, rules, **named), "integer")
    return bs.graph.cost(lowered, terms_by_shifts=most), lowered


@pytest.mark.slow
def test_a_linear_layer():
    x = torch.randn(3, 5)
    torch.manual_seed(0)
    (found,) = costs(nn.Sequential(nn.Linear(5, 4)), x)[0].ops
    assert found.multiplications == {8: 60} and found.shifts == {}
    assert found.additions == {32: 60 + 12} and found.weights == 20
    assert found.picojoules() == pytest.approx(60 * 0.2 + 72 * 0.1)
    assert found.picojoules("aladdin") == pytest.approx(60 * 12.7 + 72 * 0.21)


def test_shifts_are_those_of_the_weights():
    """One for each weight that is not 0 or 1, and an addition for each that is not 0."""
    x = torch.randn(3, 40)
    torch.manual_seed(0)
    made, lowered = costs(nn.Sequential(nn.Linear(40, 4, bias=False)), x, weight=LOG4)
    (weight,) = [b for name, b in lowered.named_buffers() if name.endswith("weight")]
    (found,) = made.ops
    assert found.shifts == {32: 3 * int((weight.abs() > 1).sum())}
    assert found.additions == {32: 3 * int((weight != 0).sum())}
    assert found.multiplications == {} and made.area == 278 + 250
    by_products = bs.graph.cost(lowered, terms_by_shifts=0).ops[0]
    assert by_products.multiplications == {8: 480} and by_products.shifts == {}


def test_convolutions_and_products():
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False))
    assert costs(conv, torch.randn(2, 4, 5, 5))[0].ops[0].multiplications == {8: 2 * 25 * 6 * 2 * 9}
    turned = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, bias=False))
    found = costs(turned, torch.randn(1, 4, 3, 3))[0].ops[0]
    assert found.multiplications == {8: 9 * 4 * 6 * 4}

    class Product(nn.Module):
        def forward(self, a, b):
            return a @ b

    x = (torch.randn(2, 3, 5), torch.randn(2, 5, 7))
    made, _ = costs(Product(), x, rules={"op:matmul": BOTH})
    assert made.ops[0].multiplications == {8: 2 * 3 * 5 * 7} and made.weights == 0


def test_what_is_said():
    made, lowered = costs(nn.Sequential(nn.Linear(5, 4)), torch.randn(3, 5))
    lines = str(made).splitlines()
    assert lines[0].split()[:2] == ["node", "multiplications"] and len(lines) == 3
    assert "60 of 8 bits" in lines[1] and lines[2].split()[0] == "all"
    with pytest.raises(ValueError, match="unknown table 'mine'; choose from horowitz, aladdin"):
        made.picojoules("mine")
    with pytest.raises(
        ValueError, match=r"number of powers of two\) must be an integer >= 1, got -1"
    ):
        bs.graph.cost(lowered, terms_by_shifts=-1)


def test_wider_than_the_tables():
    assert set(TABLES) == {"horowitz", "aladdin"}
    wide = OpCost("a", "integer_linear", {64: 1}, {64: 1}, {16: 1}, 0)
    assert wide.picojoules() == pytest.approx(4 * 3.1 + 2 * 0.1 + 0.1)


@pytest.mark.slow
def test_sizes_have_to_be_known():
    model, x = nn.Sequential(nn.Linear(5, 4)), torch.randn(3, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    prepared = bs.graph.prepare(program, bs.graph.integer_recipe(program), observer="min_max")
    bs.calibrate(prepared, [(x,)], progress=False)
    lowered = bs.graph.lower(bs.graph.fuse(bs.graph.convert(prepared)), "integer")
    with pytest.raises(bs.graph.NotIntegerError, match="unknown sizes"):
        bs.graph.cost(lowered)
