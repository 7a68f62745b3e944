"""A number where a condition does not hold."""

import torch

from tests.ops.fused.cases import Case, check, every

SEEN = torch.arange(36) % 3 == 0

CASES = [
    Case(
        ((4, 36),),
        lambda a, *, condition, other: torch.where(condition, a, other),
        {"condition": SEEN, "other": -1.25},
        rows=False,
    ),
]


@every(CASES)
def test_where_scalar(case: Case, dtype: torch.dtype) -> None:
    check("where_scalar", case, dtype)
