"""Group norm with and without weight and bias."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def affine(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    return {"num_groups": 3, "weight": weight, "bias": bias, "eps": 1e-3}


CASES = [
    Case(((4, 6, 10),), F.group_norm, affine),
    Case(((4, 6, 2, 5),), F.group_norm, {"num_groups": 2}),
]


@every(CASES)
def test_group_norm(case: Case, dtype: torch.dtype) -> None:
    check("group_norm", case, dtype)
