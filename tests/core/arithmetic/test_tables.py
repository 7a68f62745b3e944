"""Tables of numbers, eager and traced."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from blockscale.core.arithmetic.tables import table

VALUES = (-1.5, 0.0, -0.0, 2.0**-149, 3.4028234663852886e38, math.inf, 0.1)


def bits(x):
    return x.view(torch.int32) if x.dtype == torch.float32 else x


@pytest.mark.parametrize(
    ("values", "dtype"), [(VALUES, torch.float32), ((3, 0, 255), torch.uint8)], ids=["float", "int"]
)
def test_a_traced_table_is_the_eager_one(values, dtype):
    x = torch.zeros(2)
    traced = make_fx(lambda x: table(values, dtype, x))(x)
    found = traced(x)
    assert found.dtype == dtype
    assert torch.equal(bits(found), bits(table(values, dtype, x)))
    assert torch.equal(bits(found), bits(torch.tensor(values, dtype=dtype)))


def test_a_traced_table_holds_no_tensor():
    traced = make_fx(lambda x: table(VALUES, torch.float32, x))(torch.zeros(2))
    assert not [node for node in traced.graph.nodes if node.op == "get_attr"]
    constants = make_fx(lambda x: x + torch.tensor([1.0]))(torch.zeros(2))  # what it stands for
    assert [node for node in constants.graph.nodes if node.op == "get_attr"]
