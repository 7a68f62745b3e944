# SPDX-License-Identifier: BSD-3-Clause
"""The steps that nodes make of stored scales are the reference's, byte 255 and byte 0 included."""

import pytest
import torch
from onnx import TensorProto

import blockscale as bs
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.export.to_onnx.steps import offset, step
from tests.export.to_onnx.running import made, run, same

SPELLINGS = [
    *("int8:group8:fp32", "int8:group8:fp16", "int8:group8:bf16", "int8:group8:pow2/floor"),
    *("mxfp8", "mxint8", "bfp16", "nvfp4", "e2m1:group8:e5m2", "e2m1:group8:e4m3/inv"),
    *(
        "int4:group8:(uint8:tensor:fp16)",
        "uint4:group8:(uint6:group4:fp16):offset(uint6:group4:fp16)",
    ),
    "int4:group8:(e3m2:channel0:bf16)",
]


def parts(fmt, shape=(6, 64)):
    if not fmt.unchosen:
        return reference.choose_qparams(torch.randn(shape) * 3, fmt)
    return None


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_steps_are_the_references(spelling):
    fmt = parse(spelling)
    qparams = parts(fmt)
    found = run(lambda scope, names: step(scope, "w", fmt, qparams))
    assert same(found, reference.step_of(qparams, fmt))


@pytest.mark.parametrize("spelling", ["mxfp8", "mxint8", "bfp16"])
def test_every_byte_of_e8m0(spelling):
    fmt, every = parse(spelling), QParams(torch.arange(256, dtype=torch.uint8).reshape(1, -1))
    found = run(lambda scope, names: step(scope, "w", fmt, every))
    assert same(found, reference.step_of(every, fmt))


def test_bytes_stay_bytes():
    """The file holds e8m0 as e8m0, and mxint8's exponent is a product."""
    fmt = parse("mxint8")
    model = made(lambda scope, names: step(scope, "w", fmt, parts(fmt)))
    [stored] = model.graph.initializer
    assert (stored.name, stored.data_type) == ("w.scale", TensorProto.FLOAT8E8M0)
    assert model.opset_import[0].version == 24
    assert [node.op_type for node in model.graph.node] == ["Cast", "Constant", "Mul", "Identity"]


def test_a_product_that_is_too_small_is_stored_as_the_step():
    fmt = parse("nvfp4")
    qparams = QParams(torch.tensor([[1, 0]], dtype=torch.uint8), torch.tensor([[2.0**-149]]))
    found = run(lambda scope, names: step(scope, "w", fmt, qparams))
    assert same(found, reference.step_of(qparams, fmt))
    assert found[0, 0] == 2.0**-149


@pytest.mark.parametrize(
    "spelling", ["uint4:group8:fp16:offset", "uint4:group8:fp32:offset(uint6:group4:fp16)"]
)
def test_offsets(spelling):
    fmt = parse(spelling)
    qparams = bs.quantize(torch.randn(4, 64), fmt).qparams
    found = run(lambda scope, names: offset(scope, "w", fmt, qparams)[0])
    assert same(found, fmt.offset.value(qparams.offset, qparams.offset_outer))
    assert offset(None, "w", parse("int8"), qparams) is None
