"""log_softmax over the last and over another dimension."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.log_softmax, {"dim": -1}),
    Case(((3, 4, 20),), torch.log_softmax, {"dim": 1}),
]


@every(CASES)
def test_log_softmax(case: Case, dtype: torch.dtype) -> None:
    check("log_softmax", case, dtype)
