# SPDX-License-Identifier: BSD-3-Clause
"""Tensors joined, parted and turned: the values of torch's own operations on what they hold."""

import pathlib

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.regrouped import (
    RegroupedCheckpoint,
    TensorPiece,
    interleaved,
    reorder,
    separate,
)
from blockscale.files.metadata import FileError

FMT = "int4:group32:fp16:full"


class File(Checkpoint):
    def __init__(self, **tensors):
        super().__init__(pathlib.Path("x"), "")
        self.tensors = tensors
        for name, each in tensors.items():
            kind = "F32" if isinstance(each, Tensor) else "Q"
            fmt = None if isinstance(each, Tensor) else str(each.format)
            self.stored[name] = Stored(name, kind, tuple(each.shape), 64, fmt)

    def _read(self, stored):
        return self.tensors[stored.name]


def value(found):
    return found if isinstance(found, Tensor) else found.dequantize()


@pytest.mark.parametrize("fmt", [None, FMT, "mxfp4", "uint4:group32:fp16:offset"])
def test_pieces(fmt: str | None) -> None:
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    held = (a, b) if fmt is None else (bs.quantize(a, fmt), bs.quantize(b, fmt))
    file = File(a=held[0], b=held[1])
    a, b = value(held[0]), value(held[1])
    view = RegroupedCheckpoint(file, {
        "same": TensorPiece(("a",)), "stack": TensorPiece(("a", "b"), stacked=True),
        "both": TensorPiece(("b", "a")), "upper": TensorPiece(("a",), half=1),
        "rows": TensorPiece(("a",), heads=2), "back": TensorPiece(("a",), heads=-2),
    })  # fmt: skip
    expected = {
        "same": a, "stack": torch.stack([a, b]), "both": torch.cat([b, a]), "upper": a[4:],
        "rows": a[[0, 2, 1, 3, 4, 6, 5, 7]], "back": a[[0, 2, 1, 3, 4, 6, 5, 7]],
    }  # fmt: skip
    for name, wanted in expected.items():
        assert torch.equal(value(view[name]), wanted), name
        assert view.stored[name].shape == tuple(wanted.shape), name
    stack = RegroupedCheckpoint(File(s=view["stack"]), {"one": TensorPiece(("s",), expert=1)})
    assert torch.equal(value(stack["one"]), b) and stack.stored["one"].shape == (8, 64)
    assert view.pieces["stack"].name == "a … b" and view.pieces["same"].name == "a"


def test_tensors_that_are_not_quantized() -> None:
    x, v = torch.randn(3, 5), torch.randn(4).to(torch.bfloat16)
    view = RegroupedCheckpoint(File(x=x, v=v), {
        "turned": TensorPiece(("x",), transpose=True), "norm": TensorPiece(("v",), addend=1.0),
        "row": TensorPiece(("v",), row=True), "flat": TensorPiece(("x",), row=False),
    })  # fmt: skip
    assert torch.equal(view["turned"], x.T) and view.stored["turned"].shape == (5, 3)
    assert torch.equal(view["norm"], v.float() + 1) and view.stored["norm"].kind == "F32"
    assert view["row"].shape == (1, 4) == view.stored["row"].shape
    assert view["flat"].shape == (15,) == view.stored["flat"].shape


def test_what_cannot_be_joined() -> None:
    a, b = bs.quantize(torch.randn(8, 64), FMT), bs.quantize(torch.randn(8, 64), "mxfp4")
    view = RegroupedCheckpoint(File(a=a, b=b), {"s": TensorPiece(("a", "b"), stacked=True)})
    assert "it is made of 2 tensors, which are e2m1:" in view.stored["s"].unread
    other = bs.quantize(torch.randn(4, 64), FMT)
    view = RegroupedCheckpoint(File(a=a, b=other), {"s": TensorPiece(("a", "b"), stacked=True)})
    assert "its 2 tensors have the shapes [4, 64] and [8, 64]" in view.stored["s"].unread
    one = bs.quantize(torch.randn(8, 64), "int8:channel0:fp32")
    view = RegroupedCheckpoint(File(a=one, b=one), {"s": TensorPiece(("a", "b"), stacked=True)})
    with pytest.raises(
        FileError, match="'s': int8:channel0:fp32: its scale is shared by several rows"
    ):
        view["s"]
    view = RegroupedCheckpoint(File(a=a), {"s": TensorPiece(("a",), heads=3)})
    with pytest.raises(FileError, match="'s': 8 rows cannot be divided into 3 heads"):
        view["s"]


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
    moved = reorder(q, interleaved(48, 4))
    assert torch.equal(moved.dequantize(), permuted(q.dequantize(), 4))
    back = reorder(moved, separate(48, 4))
    assert torch.equal(back.packed, q.packed)
    x = torch.randn(48)
    assert torch.equal(reorder(x, interleaved(48, 4)), permuted(x, 4))


def test_rows_that_cannot_move_alone() -> None:
    for fmt in ("e4m3:tile16x16:fp32", "nf4:flat48:fp32"):
        with pytest.raises(ValueError, match="share scales with their neighbours"):
            reorder(bs.quantize(torch.randn(48, 64), fmt), interleaved(48, 4))
    for rows, heads in ((48, 5), (12, 4), (48, 0)):
        with pytest.raises(ValueError, match="heads of an even size"):
            interleaved(rows, heads)
