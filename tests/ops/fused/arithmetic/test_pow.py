"""Powers."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.pow, positive=True),
]


@every(CASES)
def test_pow(case: Case, dtype: torch.dtype) -> None:
    check("pow", case, dtype)
