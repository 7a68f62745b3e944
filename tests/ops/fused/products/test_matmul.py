"""Products of matrices, of vectors, and of stacks that broadcast."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (36, 20)), torch.matmul, rows=False),
    Case(((2, 3, 4, 36), (3, 36, 20)), torch.matmul, rows=False),
    Case(((36,), (36,)), torch.matmul, rows=False, name="vectors"),
]


@every(CASES)
def test_matmul(case: Case, dtype: torch.dtype) -> None:
    check("matmul", case, dtype)
