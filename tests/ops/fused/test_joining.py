# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of unequal formats that become one, against the plain composition."""

import torch

from tests.support.fused_cases import Case, check, every

CASES: dict[str, list[Case]] = {
    "cat": [
        Case(((4, 36), (4, 36), (4, 20)), lambda *xs, dim: torch.cat(xs, dim), {"dim": -1}),
        Case(((4, 36), (2, 36)), lambda *xs: torch.cat(xs), rows=False),
        Case(((4, 36),), lambda x: torch.cat([x]), name="one"),
    ],
    "stack": [
        Case(((4, 36), (4, 36), (4, 36)), lambda *xs, dim: torch.stack(xs, dim), {"dim": 1}),
        Case(((4, 20), (4, 20)), lambda *xs: torch.stack(xs), rows=False),
    ],
}


@every(CASES)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)
