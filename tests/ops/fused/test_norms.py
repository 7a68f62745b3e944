"""Norms and softmax against the plain composition."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every


def affine(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 36, dtype=dtype), torch.linspace(-1, 1, 36, dtype=dtype)
    return {"normalized_shape": [36], "weight": weight, "bias": bias, "eps": 1e-3}


def statistics(dtype: torch.dtype) -> dict[str, Any]:
    mean, var = torch.linspace(-1, 1, 6, dtype=dtype), torch.linspace(0.5, 2, 6, dtype=dtype)
    return {"running_mean": mean, "running_var": var}


def trained(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    return {**statistics(dtype), "weight": weight, "bias": bias, "eps": 1e-3}


def grouped(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    return {"num_groups": 3, "weight": weight, "bias": bias, "eps": 1e-3}


def weighted_norm(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "normalized_shape": [36],
        "weight": torch.linspace(0.5, 2, 36, dtype=dtype),
        "eps": 1e-3,
    }


CASES: dict[str, list[Case]] = {
    "add_layer_norm": [
        Case(((4, 36), (4, 36)), lambda a, b, **more: F.layer_norm(a + b, **more), affine),
        Case(
            ((3, 4, 20), (3, 4, 20)),
            lambda a, b, *, normalized_shape: F.layer_norm(a + b, normalized_shape),
            {"normalized_shape": [20]},
        ),
    ],
    "batch_norm": [
        Case(((4, 6, 10),), F.batch_norm, trained),
        Case(
            ((4, 6),),
            lambda x, *, running_mean, running_var: F.batch_norm(x, running_mean, running_var),
            statistics,
        ),
    ],
    "group_norm": [
        Case(((4, 6, 10),), F.group_norm, grouped),
        Case(((4, 6, 2, 5),), F.group_norm, {"num_groups": 2}),
    ],
    "l2_normalize": [
        Case(((4, 36),), F.normalize),
        Case(((3, 4, 20),), F.normalize, {"dim": -1, "eps": 1.0}),
    ],
    "layer_norm": [
        Case(((4, 36),), F.layer_norm, affine),
        Case(((3, 4, 20),), F.layer_norm, {"normalized_shape": [4, 20]}),
    ],
    "log_softmax": [
        Case(((4, 36),), torch.log_softmax, {"dim": -1}),
        Case(((3, 4, 20),), torch.log_softmax, {"dim": 1}),
    ],
    "rms_norm": [
        Case(((4, 36),), F.rms_norm, weighted_norm),
        Case(((3, 4, 20),), F.rms_norm, {"normalized_shape": [20]}),
    ],
    "softmax": [
        Case(((4, 36),), torch.softmax, {"dim": -1}),
        Case(((3, 4, 20),), torch.softmax, {"dim": 1}),
    ],
}


@every(CASES)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)
