# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values by every plan are the same, and a product's input goes the way that quantize
does."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives import choose, choose_encode, plan
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.plan import Plan, TwoPasses
from tests.kernels.webgpu.equal import hard
from tests.support.webgpu_fast_path import reach_of

SHAPE = (64, 64)


def both(fmt: str) -> list[torch.Tensor]:
    """Codes, scales and values of hard numbers, as bytes and words."""
    f, x = form(fmt), upload(hard(SHAPE, torch.float32))
    packed, parts = choose_encode.codes(f, x, torch.float32, SHAPE, None)
    values = choose_encode.values(f, x, torch.float32, SHAPE, None)
    return [
        download(packed, (f.bits * 512,), torch.uint8),
        download(parts.scale, tuple(f.scale_shape(SHAPE)), f.scale_dtype).view(torch.uint8),
        download(values, SHAPE, torch.int32),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "case"),
    [
        ("int8:group32:fp32", plan.Lines),
        ("int8:tile32x32:fp32", plan.Lines),
        ("int8:group32@0:fp32", plan.ColumnsPlan),
        ("int8:group32:bf16", plan.Teams),
    ],
)
def test_one_pass_and_two_give_the_same(
    fmt: str, case: type[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach_of(monkeypatch, 8)
    assert isinstance(plan.plan(form(fmt), torch.float32, SHAPE, "codes"), case)
    with monkeypatch.context() as once:
        once.setattr(choose, "find", None)  # which two passes begin with
        found = both(fmt)
    monkeypatch.setattr(choose_encode, "plan", lambda *_, **__: TwoPasses())
    assert all(torch.equal(a, b) for a, b in zip(found, both(fmt), strict=True))
