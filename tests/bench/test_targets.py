# SPDX-License-Identifier: BSD-3-Clause
"""What the project promises: about one shape each, and measured."""

import blockscale as bs
from blockscale.bench import targets
from blockscale.bench.groups import linear
from blockscale.bench.settings import FULL, GPU, QUICK, Settings


def test_promises_are_about_one_shape():
    case = bs.parse
    shape = targets.MATRIX

    def least(op, fmt, dtype="float32"):
        return targets.primitive(op, case(fmt), shape, dtype)["of_copy"]

    assert least("quantize", "mxfp8") == ("at_least", 0.9)
    assert least("quantize", "mxfp4") == least("quantize", "mxfp6") == ("at_least", 0.8)
    assert least("dequantize", "mxfp4") == least("quantize", "ternary") == ("at_least", 0.9)
    assert least("quantize", "int8:group32:e8m0:stochastic") == ("at_least", 0.7)
    assert least("quantize", "int8:group32@0:fp32") == ("at_least", 0.7)
    assert least("dequantize", "e2m1:tile4x4:e8m0") == ("at_least", 0.7)
    assert least("quantize", "mxfp4", "bfloat16") == ("at_least", 0.75)
    assert targets.primitive("quantize", case("mxfp8"), (4, 256), "float32") == {}
    assert targets.linear("mxfp4", None, shape, 1) == {"of_copy": ("at_least", 0.6)}
    assert targets.linear("bfp8", "bfp8", shape, 512) == {"relative": ("at_most", 0.18)}
    assert targets.linear("bfp8", "bfp8", (384, 1536), 512) == {}
    assert targets.are_met({"of_copy": ("at_least", 0.9)}, {"of_copy": 0.9}) is True
    assert targets.are_met({"relative": ("at_most", 0.1)}, {"relative": 0.11}) is False
    assert targets.are_met({}, {"relative": 0.11}) is None


def test_gpu_promises():
    case, shape = bs.parse, targets.GPU_MATRIX

    def least(op, fmt, dtype="float32"):
        return targets.primitive(op, case(fmt), shape, dtype)["of_copy"][1]

    assert least("quantize", "mxfp4") == least("dequantize", "int8_channel") == 0.95
    assert least("quantize", "mxfp4", "bfloat16") == least("quantize", "mxfp6", "bfloat16") == 0.87
    assert (
        least("quantize", "mxfp8", "bfloat16") == least("dequantize", "nvfp4", "bfloat16") == 0.93
    )
    assert least("quantize", "int8_token") == least("quantize", "int8:group32@0:fp32") == 0.85
    assert least("fake_quantize", "e2m1:group32:e8m0:stochastic", "bfloat16") == 0.7
    square, sweep = (8192, 8192), (8192, 28672)
    assert targets.linear("nvfp4", None, sweep, 16, "cuda") == {
        "relative": ("at_most", 1.05),
        "of_copy": ("at_least", 0.75),
    }
    assert targets.linear("mxfp6", None, sweep, 4096, "cuda") == {"relative": ("at_most", 1.05)}
    assert targets.linear("int8_channel", "int8_token", sweep, 16, "cuda") == {}
    assert targets.linear("int8_channel", "int8_token", square, 4096, "cuda") == {
        "relative": ("at_most", 0.741)
    }
    recipes = set(linear.recipes(Settings("cuda")))
    assert set(targets._GPU_LINEAR) <= recipes
    assert {targets._GPU_SQUARE, targets._GPU_SWEEP} == set(GPU.linear)


def test_every_promise_of_a_linear_layer_is_measured():
    assert set(targets._LINEAR) <= set(linear.RECIPES)
    rows = {m for rule in targets._LINEAR.values() for m in rule}
    assert rows <= set(FULL.linear[targets.MATRIX])
    assert rows <= set(QUICK.linear[targets.MATRIX])
