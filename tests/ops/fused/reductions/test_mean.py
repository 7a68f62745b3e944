"""Mean along dimensions and of all elements."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 3, 20),), torch.mean, {"dim": [-1], "keepdim": True}),
    Case(((4, 3, 20),), torch.mean, {"dim": [1]}),
    Case(((4, 36),), lambda x: torch.mean(x), rows=False, name="all"),
]


@every(CASES)
def test_mean(case: Case, dtype: torch.dtype) -> None:
    check("mean", case, dtype)
