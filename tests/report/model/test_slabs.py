"""Slabs of a quantized tensor are the tensor, whatever its blocks are."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import formats
from blockscale.report.model.slabs import rows, slabs

MORE = ("int8:tile4x8:bf16:recip", "nf4:flat64:fp32", "nf4:flat48:fp32", "int4:group32:fp32:offset",
        "e2m1:group32@0:e8m0/floor", "int4:group32:fp16:asym")  # fmt: skip
SHAPES = ((70, 96), (5, 70, 96), (128,), (33, 40), (3, 4, 33, 64))


@pytest.mark.parametrize("fmt", [*formats(), *MORE])
def test_together_they_are_the_tensor(fmt):
    for shape in SHAPES:
        if "tile" in fmt and len(shape) < 2:
            continue
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q = bs.quantize(x, fmt)
        parts = list(slabs(q, 1000))
        assert torch.equal(
            torch.cat([part.dequantize().flatten() for _, _, part in parts]),
            q.dequantize().flatten(),
        )
        assert torch.equal(torch.cat([rows(x, c, s).flatten() for c, s, _ in parts]), x.flatten())


def test_they_are_small():
    q = bs.quantize(torch.randn(400, 64), "mxfp4")
    sizes = [part.shape.numel() for _, _, part in slabs(q, 1000)]
    assert max(sizes) <= 1000
    assert len(sizes) > 20


def test_values_that_are_learned_stay_whole():
    with bs.use("reference"):
        q = bs.quantize(torch.randn(400, 64), "book4:group64:fp32")
    assert [part for _, _, part in slabs(q, 1000)] == [q]
