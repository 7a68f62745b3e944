"""Weights that are NaN or infinite: an error under strict, before anything changes."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import blockscale as bs


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))
    with torch.no_grad():
        made[0].weight[0, :2], made[0].weight[5, 5] = math.nan, math.inf
        made[2].bias[3] = -math.inf
    return made


TOLD = (
    "strict: not everything the recipe covers can be quantized; nothing was changed.\n"
    "  0 (Linear): 3 of 512 weights are NaN or infinite\n"
    "  2 (Linear): 1 of 32 biases are NaN or infinite\n"
    "Name them in the recipe's skip list, or call with strict=False."
)


def same(a: nn.Module, b: nn.Module) -> bool:
    states = a.state_dict(), b.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))
        for x, y in zip(states[0].values(), states[1].values(), strict=True)
    )


def test_strict_refuses_them_everywhere() -> None:
    for way in (
        lambda m: bs.quantize_(m, "int8", strict=True),
        lambda m: bs.calibrate(m, [torch.randn(4, 32)], "int8", strict=True, progress=False),
        lambda m: bs.prepare_qat(m, "int8", strict=True),
    ):
        made = model()
        before = copy.deepcopy(made)
        with pytest.raises(bs.SkippedError, match=f"^{re.escape(TOLD)}$"):
            way(made)
        assert same(made, before)
        assert type(made[0]) is nn.Linear


def test_what_is_skipped_does_not_count() -> None:
    ledger = bs.quantize_(model(), bs.Recipe("int8", skip=["0", "2"]), strict=True)
    assert not ledger.quantized


def test_without_strict_it_is_a_note_and_a_warning() -> None:
    with pytest.warns(UserWarning, match="0: 3 of 512 weights are NaN or infinite"):
        ledger = bs.quantize_(model(), "int8")
    assert ledger["0"].notes[0] == "3 of 512 weights are NaN or infinite"


def test_a_float_weight_whose_codes_are_supplied_says_nothing() -> None:
    made = model()
    made[2].bias.data.zero_()
    q = bs.quantize(torch.randn(16, 32), "int8")
    with pytest.warns(UserWarning, match="0: 3 of 512 weights are NaN or infinite"):
        ledger = bs.quantize_(made, "int8", weights={"0": q}, strict=True)
    assert len(ledger.quantized) == 2


def test_parameters_of_no_layer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.full((32, 32), math.nan))

    told = "  q (parameter of Own): 1024 of 1024 weights are NaN or infinite\n"
    with pytest.raises(bs.SkippedError, match=re.escape(told)):
        bs.quantize_(Own(), "int8", strict=True)
