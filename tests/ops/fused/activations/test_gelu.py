"""The activation GELU, exact and approximate."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.gelu),
    Case(((4, 36),), F.gelu, {"approximate": "tanh"}),
]


@every(CASES)
def test_gelu(case: Case, dtype: torch.dtype) -> None:
    check("gelu", case, dtype)
