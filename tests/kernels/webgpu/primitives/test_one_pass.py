# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors are quantized in one pass over memory, and that those of each plan are right."""

import pytest
import torch

from blockscale.kernels.webgpu.primitives import plan
from blockscale.kernels.webgpu.primitives.form import form
from tests.kernels.webgpu.equal import hard, wrong


@pytest.fixture
def _as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_ALONE", 0)
    monkeypatch.setattr(plan, "chunks_of_one", lambda *_: 1)


@pytest.mark.slow
@pytest.mark.usefixtures("_as_on_gpus")
@pytest.mark.parametrize(
    ("fmt", "shape", "team", "quads"),
    [
        pytest.param("int8:group32:fp32", (8, 64), 8, 1, marks=pytest.mark.slow),
        ("mxfp4", (8, 64), 4, 2),
        ("int8:token:fp32", (8, 4096), 256, 4),
        ("uint8:group48:bf16:asym", (8, 96), 16, 1),
        ("int8:tensor:fp32", (30,), 8, 1),
        pytest.param("ternary:group64:fp16", (3, 128), 4, 4, marks=pytest.mark.slow),
        ("e2m1:group32:(e4m3:group2:fp32)", (3, 128), 4, 2),
        ("int8:token:fp32", (2, 20000), 256, 20),
    ],
)
def test_a_team_takes_a_block(fmt: str, shape: tuple[int, ...], team: int, quads: int) -> None:
    f = form(fmt)
    planned = plan.teams(f, torch.float32, shape, "codes")
    assert planned is not None
    assert (planned.team, planned.quads) == (team, quads)
    assert not wrong(hard(shape, torch.float32), fmt)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "shape", "team", "quads"),
    [
        ("int8:group32:fp32", (8, 64), 2, 4),
        ("mxfp4", (8, 64), 4, 2),  # of few registers
        ("int8:token:fp32", (8, 4096), 256, 4),
        ("uint8:group48:bf16:asym", (8, 96), 4, 3),
        ("int8:group64:e8m0", (5, 192), 4, 4),
        ("ternary:group64:fp16", (3, 128), 4, 4),
    ],
)
def test_invocations_of_a_gpu_take_several_fours(
    fmt: str, shape: tuple[int, ...], team: int, quads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_ALONE", 0)
    monkeypatch.setattr(plan.gpu(), "software", False)
    f = form(fmt)
    planned = plan.teams(f, torch.float32, shape, "codes")
    assert planned is not None
    assert (planned.team, planned.quads) == (team, quads)
    assert not wrong(hard(shape, torch.float32), fmt)


@pytest.mark.parametrize(
    ("fmt", "chunk", "chunks"), [("int8:group32:fp32", 4, 4), ("int4", 8, 2), ("mxfp8", 4, 1)]
)
def test_how_many_chunks(
    fmt: str, chunk: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.gpu(), "software", False)
    assert plan.chunks_of_one(form(fmt), chunk) == chunks
    monkeypatch.setattr(plan.gpu(), "software", True)
    assert plan.chunks_of_one(form(fmt), chunk) == 1


def test_where_a_cpu_computes_nobody_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.gpu(), "software", True)
    f = form("int8:group32:fp32")
    planned = plan.teams(f, torch.float32, (8, 64), "codes")
    assert planned is not None
    assert (planned.team, planned.chunk, planned.quads) == (1, 32, 8)
    assert not wrong(hard((8, 64), torch.float32), "int8:group32:fp32")


@pytest.mark.parametrize(
    ("fmt", "shape"),
    [
        ("int8:group32:fp32", (8, 60)),  # boxes
        ("int8:group2:fp32", (8, 64)),  # smaller than what an invocation takes
        ("int8:token:e8m0", (8, 4096)),  # words of scales belong to several workgroups
        ("int8:tensor:fp32", (1 << 20,)),  # larger than a workgroup
    ],
)
def test_other_tensors_take_several(fmt: str, shape: tuple[int, ...]) -> None:
    f = form(fmt)
    assert plan.teams(f, torch.float32, shape, "codes") is None
