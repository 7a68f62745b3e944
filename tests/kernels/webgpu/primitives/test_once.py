"""Which tensors are quantized in one pass over memory, and that those of each plan are right."""

import pytest
import torch

from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.once import plan
from tests.kernels.webgpu.equal import hard, wrong


@pytest.mark.parametrize(
    ("fmt", "shape", "team", "quads"),
    [
        ("int8:group32:fp32", (8, 64), 8, 1),
        ("mxfp4", (8, 64), 4, 2),
        ("int8:token:fp32", (8, 4096), 256, 4),
        ("int8:group48:fp32", (8, 96), 16, 1),
        ("int8:tensor:fp32", (30,), 8, 1),
    ],
)
def test_a_team_takes_a_block(fmt: str, shape: tuple[int, ...], team: int, quads: int) -> None:
    f = form(fmt)
    planned = plan(f, torch.float32, shape, f.bits, True)
    assert planned is not None
    assert (planned.team, planned.quads) == (team, quads)
    assert not wrong(hard(shape, torch.float32), fmt)


@pytest.mark.parametrize(
    ("fmt", "shape"),
    [
        ("int8:group32:fp32", (8, 60)),  # boxes
        ("int8:group2:fp32", (8, 64)),  # smaller than what an invocation takes
        ("mxfp4", (1,)),  # a byte of scales
        ("int8:token:e8m0", (8, 4096)),  # words of scales belong to several workgroups
        ("int8:tensor:fp32", (1 << 20,)),  # larger than a workgroup
    ],
)
def test_other_tensors_take_several(fmt: str, shape: tuple[int, ...]) -> None:
    f = form(fmt)
    planned = plan(f, torch.float32, shape, f.bits, True)
    assert planned is None or (fmt == "mxfp4" and planned.team == 1)
