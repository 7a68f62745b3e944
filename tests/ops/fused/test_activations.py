# SPDX-License-Identifier: BSD-3-Clause
"""Activations and other functions of one tensor against the plain composition."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Value
from blockscale.ops.fused import FUSED
from tests.support.fused_cases import Case, check, every

SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}


def slopes(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"weight": torch.linspace(-0.5, 0.5, 6, dtype=dtype)}


CASES: dict[str, list[Case]] = {
    "elu": [
        Case(((4, 36),), lambda x: F.elu(x)),
        Case(((4, 36),), lambda x, *, alpha: F.elu(x, alpha), {"alpha": 0.7}),
        Case(((4, 36),), torch.ops.aten.elu, SELU, name="selu"),
    ],
    "gelu": [
        Case(((4, 36),), F.gelu),
        Case(((4, 36),), F.gelu, {"approximate": "tanh"}),
    ],
    "hardsigmoid": [
        Case(((4, 36),), F.hardsigmoid),
        Case(((2, 3, 20),), F.hardsigmoid),
    ],
    "hardswish": [
        Case(((4, 36),), F.hardswish),
        Case(((2, 3, 20),), F.hardswish),
    ],
    "hardtanh": [
        Case(((4, 36),), F.hardtanh),
        Case(((4, 36),), F.hardtanh, {"min_val": -0.25, "max_val": 1.5}),
    ],
    "leaky_relu": [
        Case(((4, 36),), F.leaky_relu),
        Case(((4, 36),), F.leaky_relu, {"negative_slope": 0.3}),
    ],
    "mish": [
        Case(((4, 36),), F.mish),
        Case(((2, 3, 20),), F.mish),
    ],
    "prelu": [
        Case(((4, 6, 10),), torch.prelu, slopes),
        Case(((4, 36),), torch.prelu, lambda dtype: {"weight": torch.tensor([0.3], dtype=dtype)}),
    ],
    "relu": [
        Case(((4, 36),), torch.relu),
        Case(((2, 3, 20),), torch.relu),
    ],
    "relu6": [
        Case(((4, 36),), F.relu6),
        Case(((2, 3, 20),), F.relu6),
    ],
    "sigmoid": [
        Case(((4, 36),), torch.sigmoid),
        Case(((2, 3, 20),), torch.sigmoid),
    ],
    "silu": [
        Case(((4, 36),), F.silu),
        Case(((2, 3, 20),), F.silu),
    ],
    "softplus": [
        Case(((4, 36),), F.softplus),
        Case(((4, 36),), F.softplus, {"beta": 2.0, "threshold": 1.0}),
    ],
    "tanh": [
        Case(((4, 36),), torch.tanh),
        Case(((2, 3, 20),), torch.tanh),
    ],
    # functions of one tensor
    "abs": [
        Case(((4, 36),), torch.abs),
        Case(((2, 3, 20),), torch.abs),
    ],
    "clamp": [
        Case(((4, 36),), torch.clamp, {"min": -0.5, "max": 1.0}),
        Case(((4, 36),), torch.clamp, {"min": 0.25}),
        Case(((4, 36),), torch.clamp, {"max": 0.25}),
    ],
    "exp": [
        Case(((4, 36),), torch.exp),
        Case(((2, 3, 20),), torch.exp),
    ],
    "neg": [
        Case(((4, 36),), torch.neg),
        Case(((2, 3, 20),), torch.neg),
    ],
    "reciprocal": [
        Case(((4, 36),), torch.reciprocal, positive=True),
        Case(((2, 3, 20),), torch.reciprocal, positive=True),
    ],
    "requantize": [
        Case(((4, 36),), torch.clone),
        Case(((2, 3, 20),), torch.clone),
    ],
    "rsqrt": [
        Case(((4, 36),), torch.rsqrt, positive=True),
        Case(((2, 3, 20),), torch.rsqrt, positive=True),
    ],
    "sqrt": [
        Case(((4, 36),), torch.sqrt, positive=True),
        Case(((2, 3, 20),), torch.sqrt, positive=True),
    ],
}


@every(CASES, 12)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)


def test_selu_is_one() -> None:
    x = torch.randn(4, 36)
    assert torch.equal(FUSED["elu"](Value(x), **SELU)[0], F.selu(x))
