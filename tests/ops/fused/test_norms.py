# SPDX-License-Identifier: BSD-3-Clause
"""Norms and softmax against the plain composition."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.ops.fused.matching import match
from tests.support.fused_cases import Case, check, every
from tests.support.op_samples import bits


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


def with_channels(dtype: torch.dtype) -> dict[str, Any]:
    weight, bias = torch.linspace(0.5, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)
    return {"weight": weight, "bias": bias, "eps": 1e-3}


def instance_norm(x: Tensor, **settings: Any) -> Tensor:
    return F.instance_norm(x, use_input_stats="running_mean" not in settings, **settings)


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
    "instance_norm": [
        Case(((4, 6, 10),), instance_norm, with_channels),
        Case(((4, 6, 2, 5),), instance_norm),
        Case(((4, 6, 2, 3, 4),), instance_norm, trained),
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


@every(CASES, 12)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)


INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
OPTIONS = ({}, {"affine": True}, {"affine": True, "track_running_stats": True})


@pytest.mark.slow
@pytest.mark.some(4)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dims", INSTANCE_NORMS)
def test_instance_norms_in_a_graph(dims: int, options: dict[str, Any]) -> None:
    """One op that takes codes and gives codes, with the bits of the graph before it was fused."""
    torch.manual_seed(dims)
    convs = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    layers = convs[dims](3, 6, 1), INSTANCE_NORMS[dims](6, **options), convs[dims](6, 4, 1)
    model, x = nn.Sequential(*layers).eval(), (torch.randn(2, 3, *(4,) * dims),)
    rules: Any = {"op:instance_norm": {"input": "int8", "output": "uint8:tensor:fp32:asym"}}
    graph = bs.graph.prepare(
        torch.export.export(model, x), bs.Recipe("int8_channel", "int8", rules=rules),
        observer="min_max",
    )  # fmt: skip
    with torch.no_grad(), bs.use("reference"):
        graph(*x)
        converted = bs.graph.convert(graph)
        fused = bs.graph.fuse(converted)
        assert bits(fused(*x)) == bits(converted(*x))
    ops = [str(node.target) for node in fused.graph.nodes]
    assert "blockscale.fused_instance_norm.default" in ops
    assert not any("aten.instance_norm" in op for op in ops)


def test_statistics_that_change_are_no_fused_op() -> None:
    """In training torch updates the stored ones."""
    model, x = nn.InstanceNorm1d(3, track_running_stats=True).train(), (torch.randn(2, 3, 5),)
    program = torch.export.export(model, x)
    node = next(n for n in program.graph.nodes if "instance_norm" in str(n.target))
    assert match(node) is None
