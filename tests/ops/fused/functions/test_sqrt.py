"""Square roots."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.sqrt, positive=True),
    Case(((2, 3, 20),), torch.sqrt, positive=True),
]


@every(CASES)
def test_sqrt(case: Case, dtype: torch.dtype) -> None:
    check("sqrt", case, dtype)
