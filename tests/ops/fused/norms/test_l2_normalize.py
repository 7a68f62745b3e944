"""Rows of length 1."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.normalize),
    Case(((3, 4, 20),), F.normalize, {"dim": -1, "eps": 1.0}),
]


@every(CASES)
def test_l2_normalize(case: Case, dtype: torch.dtype) -> None:
    check("l2_normalize", case, dtype)
