# SPDX-License-Identifier: BSD-3-Clause
"""Round trips of activations in a file are the reference's, to the bit, static and dynamic."""

import pytest
import torch

import blockscale as bs
from blockscale.core import reference
from blockscale.core.parse import CATALOG, parse
from blockscale.core.reference import QParams
from blockscale.export.to_onnx.activation import activation, refusal
from tests.export.to_onnx.running import EDGES, made, run, same

DYNAMIC = [
    *(fmt for name, fmt in CATALOG.items() if name != "nvfp4_token"),  # outer scales of rows
    *(
        "int8:token:fp32:full",
        "int8:group5:fp32",
        "int8:token:fp16:recip",
        "e2m1:group8:e4m3:recip",
    ),
    *("int8:token:fp32:nearest_away", "uint4:group8:fp32:asym(fp16)", "int4:tile2x8:fp32"),
    *(
        "int6:group8:e8m0/even",
        "e3m2:token:bf16:toward_zero",
        "int8:channel1:fp32",
        "fp4:group8:fp32",
    ),
]
STATIC = [
    *("int8", "uint8", "int8_pow2", "int16", "uint16", "fp8", "fp8_e5m2", "int4:tensor:fp32"),
    *(
        "int8:tensor:fp32:full",
        "int8:tensor:fp16",
        "int8:channel-1:fp32",
        "uint4:channel-1:fp32:asym",
    ),
    *("int8:tensor:e8m0", "e2m1:tensor:fp32", "log4:tensor:fp32", "int8:tensor:fp32:recip"),
    *("int8:tensor:fp32:up", "uint8:tensor:fp32:offset", "uint8:tensor:fp32:asym(fp32)"),
    *("uint7:tensor:fp32:asym", "uint7:tensor:pow2/nearest", "int7:tensor:pow2/nearest:full"),
    *("int6:tensor:fp32", "int5:tensor:fp32:asym", "uint3:tensor:bf16:asym"),
    *("nf4:tensor:fp32", "int3:tensor:fp32", "int4:channel-1:fp32", "binary:tensor:fp32"),
]


def x(rows=6):
    torch.manual_seed(1)
    values = torch.randn(rows, 2, 28) * 2.0 ** torch.randint(-3, 4, (rows, 2, 1))
    values[0, 0, :] = EDGES[:28]
    values[1] = 0
    return values


def trip(fmt, qparams, given, sizes, optimized=False):
    def build(scope, names):
        return activation(scope, "a", names[0], fmt, qparams, sizes)

    return run(build, given, optimized=optimized)


@pytest.mark.some(4)
@pytest.mark.parametrize("spelling", DYNAMIC)
def test_dynamic(spelling):
    fmt, given = parse(spelling), x()
    expected = reference.fake_quantize(given, reference.choose_qparams(given, fmt), fmt)
    sizes = (None, 2, 28)
    assert refusal(fmt, None, sizes) is None
    for optimized in (False, True):
        assert same(trip(fmt, None, given, sizes, optimized), expected)
    few = given[2:3]
    expected = reference.fake_quantize(few, reference.choose_qparams(few, fmt), fmt)
    assert same(trip(fmt, None, few, sizes), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("spelling", STATIC)
def test_static(spelling):
    """Scales of other numbers, so that many saturate at either end."""
    fmt, given = parse(spelling), x()
    qparams = reference.choose_qparams(given.clamp(-1.5, 2.5), fmt)
    expected = reference.fake_quantize(given, qparams, fmt)
    for optimized in (False, True):
        assert same(trip(fmt, qparams, given, (None, 2, 28), optimized), expected)


def test_one_scale_of_any_rank():
    fmt, given = parse("int8"), x()
    one = QParams(torch.tensor([0.02]))
    assert same(
        trip(fmt, one, given, (None,) * 3), bs.fake_quantize(given, fmt, torch.tensor(0.02))
    )


@pytest.mark.parametrize("spelling", ["int8:token:fp32", "mxfp8", "bfp8", "nvfp4"])
def test_numbers_that_are_none(spelling):
    fmt, given = parse(spelling), x()
    given[2, 0, 3], given[3, 1, 5], given[4, 0, 0] = torch.nan, torch.inf, -torch.inf
    expected = reference.fake_quantize(given, reference.choose_qparams(given, fmt), fmt)
    assert same(trip(fmt, None, given, (None, 2, 28)), expected)


def operators(spelling, static=True):
    fmt, given = parse(spelling), x()
    qparams = reference.choose_qparams(given, fmt) if static else None
    model = made(
        lambda scope, names: activation(scope, "a", names[0], fmt, qparams, (None, 2, 28)), given
    )
    return [n.op_type for n in model.graph.node if n.op_type not in ("Constant", "Identity")]


def test_operators_that_runtimes_fuse():
    assert operators("uint8") == ["QuantizeLinear", "DequantizeLinear"]
    assert operators("int8") == ["QuantizeLinear", "Clip", "DequantizeLinear"]
    assert operators("int8:tensor:fp32:full") == ["QuantizeLinear", "DequantizeLinear"]
    assert operators("uint8", static=False)[-2:] == ["QuantizeLinear", "DequantizeLinear"]
    found = operators("mxfp8", static=False)
    assert found[:2] == ["Pad", "Reshape"] and found[-3:] == ["Mul", "Reshape", "Slice"]


def test_what_no_file_can_do():
    sizes = (None, 2, 28)
    assert "stochastic" in refusal(parse("int8:token:fp32:stochastic"), None, sizes)
    assert "size is dynamic: make" in refusal(parse("group" and "int8:group4@0:fp32"), None, sizes)
    assert "do not divide" in refusal(parse("binary:group8:fp32"), None, sizes)
    assert "static scales" in refusal(
        parse("int8:group4:fp32"), QParams(torch.ones(1, 2, 7)), sizes
    )
