"""Of each two elements, the one that a condition says."""

import torch

from tests.ops.fused.cases import Case, check, every

SEEN = torch.arange(36) % 3 == 0

CASES = [
    Case(
        ((4, 36), (4, 36)),
        lambda a, b, *, condition: torch.where(condition, a, b),
        {"condition": SEEN},
        rows=False,
    ),
]


@every(CASES)
def test_where(case: Case, dtype: torch.dtype) -> None:
    check("where", case, dtype)
