# SPDX-License-Identifier: BSD-3-Clause
"""The activations by their definitions, in float64 and written out with Python's math."""

import math

import pytest
import torch

from blockscale.kernels.activations import ACTIVATIONS

NUMBERS = (-40.0, -6.5, -3.0, -1.25, -1e-9, -0.0, 0.0, 1e-9, 0.75, 2.9999, 3.0, 6.0, 6.25, 40.0)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


EXPECTED = {
    "": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
}


def test_each_is_tested() -> None:
    assert ACTIVATIONS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_definitions(name: str) -> None:
    found = ACTIVATIONS[name](torch.tensor(NUMBERS, dtype=torch.float64)).tolist()
    assert found == pytest.approx([EXPECTED[name](x) for x in NUMBERS], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_not_a_number_stays_that(name: str) -> None:
    assert ACTIVATIONS[name](torch.tensor([torch.nan])).isnan().all()
