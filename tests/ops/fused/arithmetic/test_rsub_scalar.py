"""A number minus a tensor."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.rsub, {"other": 0.3}),
    Case(((2, 3, 20),), torch.rsub, {"other": -2.0, "alpha": 0.5}),
]


@every(CASES)
def test_rsub_scalar(case: Case, dtype: torch.dtype) -> None:
    check("rsub_scalar", case, dtype)
