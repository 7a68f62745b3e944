"""A product on top of a third tensor."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((20,), (4, 36), (36, 20)), torch.addmm, rows=False),
    Case(((4, 20), (4, 36), (36, 20)), torch.addmm, {"beta": 0.5, "alpha": -2.0}, rows=False),
]


@every(CASES)
def test_addmm(case: Case, dtype: torch.dtype) -> None:
    check("addmm", case, dtype)
