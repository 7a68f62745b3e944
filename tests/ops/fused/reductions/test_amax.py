"""The largest element along dimensions and of all."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 3, 20),), torch.amax, {"dim": [1, 2], "keepdim": True}),
    Case(((4, 3, 20),), torch.amax, {"dim": [1]}),
    Case(((4, 36),), lambda x: torch.amax(x), rows=False, name="all"),
]


@every(CASES)
def test_amax(case: Case, dtype: torch.dtype) -> None:
    check("amax", case, dtype)
