"""A number where a mask holds."""

import torch

from tests.ops.fused.cases import Case, check, every

SEEN = torch.arange(36) % 3 == 0

CASES = [
    Case(((4, 36),), torch.masked_fill, {"mask": SEEN, "value": -1.25}, rows=False),
]


@every(CASES)
def test_masked_fill(case: Case, dtype: torch.dtype) -> None:
    check("masked_fill", case, dtype)
