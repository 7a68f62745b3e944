"""Layer norm with and without weight and bias."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def affine(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 36, dtype=dtype), torch.linspace(-1, 1, 36, dtype=dtype)
    return {"normalized_shape": [36], "weight": weight, "bias": bias, "eps": 1e-3}


CASES = [
    Case(((4, 36),), F.layer_norm, affine),
    Case(((3, 4, 20),), F.layer_norm, {"normalized_shape": [4, 20]}),
]


@every(CASES)
def test_layer_norm(case: Case, dtype: torch.dtype) -> None:
    check("layer_norm", case, dtype)
