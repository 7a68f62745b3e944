"""Powers by one number."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.pow, {"exponent": 2.0}),
    Case(((4, 36),), torch.pow, {"exponent": -0.5}, positive=True),
]


@every(CASES)
def test_pow_scalar(case: Case, dtype: torch.dtype) -> None:
    check("pow_scalar", case, dtype)
