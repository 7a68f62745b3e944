"""A batch of products on top of a third tensor."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((3, 4, 20), (3, 4, 36), (3, 36, 20)), torch.baddbmm),
    Case(((3, 4, 20), (3, 4, 36), (3, 36, 20)), torch.baddbmm, {"beta": 0.5, "alpha": -2.0}),
]


@every(CASES)
def test_baddbmm(case: Case, dtype: torch.dtype) -> None:
    check("baddbmm", case, dtype)
