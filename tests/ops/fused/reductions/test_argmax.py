"""Where the largest element is, the first of equal ones."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 3, 20),), torch.argmax, {"dim": -1}),
    Case(((4, 3, 20),), torch.argmax, {"dim": 1, "keepdim": True}),
    Case(((4, 36),), lambda x: torch.argmax(x), rows=False, name="all"),
]


@every(CASES)
def test_argmax(case: Case, dtype: torch.dtype) -> None:
    check("argmax", case, dtype)
