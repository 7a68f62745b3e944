"""The order of rows, against llama.cpp's permute of values."""

import pytest
import torch

import blockscale as bs
from blockscale.export.checkpoints.rows import interleaved, reordered, separated


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    apart = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return apart.swapaxes(1, 2).reshape(weight.shape)


FORMATS = (
    "int4:group32:fp16:full", "uint4:channel0:fp16:asym", "nvfp4", "int8:tensor:fp32",
    "int6:group16:(int8:group4:fp16)",
)  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_codes_and_scales_move(fmt: str) -> None:
    q = bs.quantize(torch.randn(48, 64), fmt)
    moved = reordered(q, interleaved(48, 4))
    assert torch.equal(moved.dequantize(), permuted(q.dequantize(), 4))
    back = reordered(moved, separated(48, 4))
    assert torch.equal(back.packed, q.packed)
    x = torch.randn(48)
    assert torch.equal(reordered(x, interleaved(48, 4)), permuted(x, 4))


def test_rows_that_cannot_move_alone() -> None:
    for fmt in ("e4m3:tile16x16:fp32", "nf4:flat48:fp32"):
        with pytest.raises(ValueError, match="share scales with their neighbours"):
            reordered(bs.quantize(torch.randn(48, 64), fmt), interleaved(48, 4))
    for rows, heads in ((48, 5), (12, 4), (48, 0)):
        with pytest.raises(ValueError, match="heads of an even size"):
            interleaved(rows, heads)
