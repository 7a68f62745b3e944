# SPDX-License-Identifier: BSD-3-Clause
"""Marks: what torch sees of them."""

import torch

from blockscale.export.to_onnx.pieces import MARK, placed, placed_like


def test_a_mark_runs_in_torch_as_zeros():
    made = placed(3, torch.ones(2, 4), (2, 5), torch.float16)
    assert (made.shape, made.dtype) == ((2, 5), torch.float16)
    assert not made.any()


def test_a_mark_with_the_sizes_of_its_input():
    made = placed_like(0, torch.ones(2, 3, dtype=torch.int64), (7,), torch.float32)
    assert (made.shape, made.dtype) == ((2, 3, 7), torch.float32)


def test_the_exporter_keeps_it_as_one_node():
    class Model(torch.nn.Module):
        def forward(self, x):
            return placed_like(5, x, (), x.dtype)

    program = torch.export.export(Model(), (torch.ones(2),))
    [node] = [n for n in program.graph.nodes if n.op == "call_function"]
    assert node.args[1] == MARK[1] and node.kwargs["domain"] == MARK[0]
    assert node.kwargs["attr_ints"] == [5]
