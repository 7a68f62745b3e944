"""RMS norm with and without a weight."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def weighted(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "normalized_shape": [36],
        "weight": torch.linspace(0.5, 2, 36, dtype=dtype),
        "eps": 1e-3,
    }


CASES = [
    Case(((4, 36),), F.rms_norm, weighted),
    Case(((3, 4, 20),), F.rms_norm, {"normalized_shape": [20]}),
]


@every(CASES)
def test_rms_norm(case: Case, dtype: torch.dtype) -> None:
    check("rms_norm", case, dtype)
