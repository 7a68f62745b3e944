"""A batch of products."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((3, 4, 36), (3, 36, 20)), torch.bmm),
]


@every(CASES)
def test_bmm(case: Case, dtype: torch.dtype) -> None:
    check("bmm", case, dtype)
