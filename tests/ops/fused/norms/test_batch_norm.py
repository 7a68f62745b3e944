"""Batch norm with statistics from training."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def statistics(dtype: torch.dtype) -> dict[str, Any]:
    mean, var = torch.linspace(-1, 1, 6, dtype=dtype), torch.linspace(0.5, 2, 6, dtype=dtype)
    return {"running_mean": mean, "running_var": var}


def trained(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    return {**statistics(dtype), "weight": weight, "bias": bias, "eps": 1e-3}


CASES = [
    Case(((4, 6, 10),), F.batch_norm, trained),
    Case(
        ((4, 6),),
        lambda x, *, running_mean, running_var: F.batch_norm(x, running_mean, running_var),
        statistics,
    ),
]


@every(CASES)
def test_batch_norm(case: Case, dtype: torch.dtype) -> None:
    check("batch_norm", case, dtype)
