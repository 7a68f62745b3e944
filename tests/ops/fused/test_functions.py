# SPDX-License-Identifier: BSD-3-Clause
"""Functions of one tensor against the plain composition."""

import torch

from tests.support.fused_cases import Case, check, every

CASES: dict[str, list[Case]] = {
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


@every(CASES)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)
