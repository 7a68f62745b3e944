"""Masks from inputs: comparisons and junctions against torch's own, and what is refused."""

import re

import pytest
import torch

import blockscale as bs
from blockscale.export.to_c.walk import walk
from tests.support.c_handmade import handmade
from tests.support.c_running import check, needs_gcc

aten = torch.ops.aten


@needs_gcc
def test_masks(tmp_path):
    x = torch.tensor([[0, 1, 2, -3], [5, 0, 1, 1]])
    row, column = torch.arange(4), torch.tensor([[True], [False]])
    calls = [
        (aten.to.dtype, ["x", torch.bool]),
        (aten.__and__.Tensor, ["@0", column]),
        (aten.bitwise_or.Tensor, ["@1", "@0"]),
        (aten.logical_not.default, ["@2"]),
        *((op, ["x", row]) for op in (aten.le.Tensor, aten.gt.Tensor, aten.ne.Tensor)),
        *((op, ["x", 1]) for op in (aten.lt.Scalar, aten.ge.Scalar, aten.eq.Scalar)),
        (aten.to.dtype, ["@4", torch.int64]),
        (aten.index.Tensor, ["@0", [torch.tensor([[1], [0]]), torch.tensor([0, 3])]]),
    ]
    path = check(handmade({"x": x}, calls), tmp_path, (x,), (x.flip(1),))
    assert len(re.findall(r"static int step\d+_mask", path.read_text())) == 11


@pytest.mark.parametrize(
    ("op", "args", "why"),
    [
        (aten.__and__.Scalar, ["x", 3], "it is no mask of bools"),
        (aten.to.dtype, ["x", torch.int8], "it is no mask of bools"),
        (aten.to.dtype, ["x", torch.float32], "has no C form"),
        (aten.index.Tensor, [torch.arange(9), ["x"]], "indices are computed from inputs"),
    ],
)
def test_what_is_refused(op, args, why):
    x = torch.tensor([0, 1, 2])
    with pytest.raises(bs.graph.NotIntegerError, match=why):
        walk(handmade({"x": x}, [(op, args)]), [x])


def test_floats_are_refused():
    x = torch.randn(3)
    with pytest.raises(bs.graph.NotIntegerError, match="it reads no integers"):
        walk(handmade({"x": x}, [(aten.gt.Scalar, ["x", 0.5])]), [x])
