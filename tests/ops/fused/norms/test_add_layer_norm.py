"""Layer norm of a sum."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def affine(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 36, dtype=dtype), torch.linspace(-1, 1, 36, dtype=dtype)
    return {"normalized_shape": [36], "weight": weight, "bias": bias, "eps": 1e-3}


CASES = [
    Case(((4, 36), (4, 36)), lambda a, b, **more: F.layer_norm(a + b, **more), affine),
    Case(
        ((3, 4, 20), (3, 4, 20)),
        lambda a, b, *, normalized_shape: F.layer_norm(a + b, normalized_shape),
        {"normalized_shape": [20]},
    ),
]


@every(CASES)
def test_add_layer_norm(case: Case, dtype: torch.dtype) -> None:
    check("add_layer_norm", case, dtype)
