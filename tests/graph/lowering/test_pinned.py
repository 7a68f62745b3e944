# SPDX-License-Identifier: BSD-3-Clause
"""Ops that keep to the reference."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, operand
from blockscale.graph.lowering.pinned import PREFIX, pinned
from blockscale.graph.lowering.way import by_overload
from blockscale.ops.linear import linear


def test_every_op_has_one_of_its_schema():
    for overload in by_overload():
        name, schema = overload._schema.name, str(overload._schema)
        made = pinned(overload)
        own = name.replace("::", f"::{PREFIX}")
        assert made._schema.name == own
        assert str(made._schema) == schema.replace(name, own, 1)


def arguments(fmt):
    weight = bs.quantize(torch.randn(48, 64), fmt)
    packed = bs.quantize(torch.randn(48, 64), fmt)
    del weight
    from tests.graph.lowering.programs import operand_codes

    coded = operand(operand_codes(packed), packed.qparams, fmt, 64)
    return torch.randn(5, 64), coded, torch.randn(48), UNQUANTIZED


@pytest.mark.parametrize("choice", ["auto", "cpu", "reference"])
def test_it_runs_the_reference(choice):
    args = arguments("int4:group32:fp32")
    expected = linear.reference(*args)
    with bs.use(choice, fallback=True):
        found = pinned(linear.overload)(*linear.flatten(*args))
    assert torch.equal(found, expected)


def test_torch_knows_its_shape():
    args = linear.flatten(*arguments("mxfp8"))
    torch.library.opcheck(
        pinned(linear.overload), args, test_utils=("test_schema", "test_faketensor")
    )
