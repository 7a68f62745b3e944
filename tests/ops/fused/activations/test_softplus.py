"""The activation softplus."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.softplus),
    Case(((4, 36),), F.softplus, {"beta": 2.0, "threshold": 1.0}),
]


@every(CASES)
def test_softplus(case: Case, dtype: torch.dtype) -> None:
    check("softplus", case, dtype)
