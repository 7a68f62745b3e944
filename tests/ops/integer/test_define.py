# SPDX-License-Identifier: BSD-3-Clause
"""How integer ops are defined."""

import pytest
import torch

import blockscale as bs
from blockscale.ops.integer import INTEGER_OPS
from tests.support.integer_oracle import INT8, shifts

NAMES = {
    *("quantize", "dequantize", "rescale", "linear", "conv", "matmul", "attention", "embedding"),
    *("add", "mul", "look_up", "max_pool", "sum_pool", "sum_over", "layer_norm", "softmax"),
}


def test_the_set_is_closed():
    assert set(INTEGER_OPS) == {f"integer_{name}" for name in NAMES}


def test_only_the_doors_know_floats():
    for name, op in INTEGER_OPS.items():
        schema = str(op.overload._schema)
        assert "float" not in schema, name


@pytest.mark.slow
def test_they_are_torch_ops():
    x, op = torch.zeros(4, dtype=torch.int32), INTEGER_OPS["integer_rescale"]
    args = (x, 0, shifts(2), 0, -127, 127, INT8)
    assert torch.equal(op.overload(*args), op(*args))
    torch.library.opcheck(op.overload, args)


def test_the_reference_is_asked_for_by_name():
    x = torch.randint(-128, 128, (5, 7), dtype=torch.int8)
    table = torch.arange(256).to(torch.uint8)
    op = INTEGER_OPS["integer_look_up"]
    with bs.use("reference"):
        expected = op(x, table)
    assert torch.equal(op(x, table), expected) and torch.equal(expected, x.view(torch.uint8))
