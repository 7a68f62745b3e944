# SPDX-License-Identifier: BSD-3-Clause
"""What shaders of a format are made of."""

import numpy as np
import pytest

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.restate import for_decoding
from blockscale.kernels.webgpu.gpu.probe import EXACT
from blockscale.kernels.webgpu.gpu.shader import Shader, is_table, texts_of
from blockscale.kernels.webgpu.spec import Coding, bits_of, float_of, in_order, known, shader_of
from tests.kernels.codebook import registered
from tests.kernels.webgpu.wgsl.running import ProbeChoose, ProbeCode, ProbeRandom

FORMATS = (
    *(name for name in CATALOG if for_decoding(parse(name)) is None),  # others run restated
    "int4:group16:(uint6:group4:fp32):asym:stochastic",
    "nf4:group16:(nf4:group4:bf16)/inv",
    "uint4:group32:fp16:offset:recip",
    "uint4:group32:bf16:asym(bf16)",
    "int4:group32:fp16:signed:up",
    "book(0,1):flat64:pow2/nearest",
    "log8f3:tile2x4:e8m0/tosa",
)


@pytest.mark.parametrize("name", FORMATS)
def test_every_part_is_there(name: str) -> None:
    """Shaders that choose, encode, decode and draw are composed; no constant is there twice."""
    assert known((parse(name),), ())
    roles, constants = shader_of(name)
    for kernel in (ProbeCode, ProbeChoose):
        assert len(texts_of(Shader(kernel(Coding(roles, EXACT)), constants))) > 2
    assert len(texts_of(Shader(ProbeRandom(roles.random, EXACT)))) > 1
    assert len(dict(constants)) == len(constants)
    assert all(is_table(n) or not isinstance(v, tuple) or len(v) <= 16 for n, v in constants)


def test_a_spelling_and_its_format_are_one() -> None:
    assert shader_of("mxfp4") == shader_of(parse("mxfp4")) == shader_of("e2m1:group32:e8m0/floor")


@pytest.mark.parametrize(
    ("name", "role", "part"),
    [
        ("int8", "how", "quotient"),
        ("mxfp4", "how", "shift"),
        ("int8:token:bf16:recip", "how", "product"),
        ("uint8", "zero", "integer"),
        ("uint8", "numerator", "spread"),
        ("uint4:token:fp32", "numerator", "high"),
        ("binary", "numerator", "high"),
        ("iq4_nl:group32:fp16", "ratio", "two_sided"),
        ("iq4_nl:group32:e8m0", "ratio", "divided"),
        ("int8_pow2", "power", "nearest"),
        ("nvfp4", "join", "multiplied"),
        ("e2m1:group16:e4m3:recip", "levels", "separate"),
        ("binary:token:fp32", "random", "none"),
        ("int8:token:fp32:stochastic", "random", "philox"),
        ("log8f3:channel0:fp32", "element", "large_codebook"),
    ],
)
def test_what_is_chosen(name: str, role: str, part: str) -> None:
    assert shader_of(name)[0].variants()[role] == part


def test_constants() -> None:
    fp8 = dict(shader_of("fp8")[1])
    assert (fp8["LARGEST_VALUE"], fp8["NAN_CODE"], fp8["MAX_CODE"]) == (bits_of(448.0), 127, 126)
    assert fp8["INVERSE_LEVELS"] == int(np.float32(1 / np.float32(448)).view(np.uint32))
    assert dict(shader_of("nvfp4")[1])["OUTER_LEVELS"] == bits_of(2688.0)
    assert dict(shader_of("int4:token:fp16:half")[1])["LEVELS"] == bits_of(7.5)
    assert dict(shader_of("log8:token:fp32")[1])["FAR_VALUES"]
    assert not dict(shader_of("mxfp8_e5m2")[1])["FAR_VALUES"]


def test_order_and_bits() -> None:
    numbers = [-np.inf, -3.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, np.inf]
    keys = [in_order(bits_of(float(n))) for n in numbers]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert [float_of(bits_of(float(n))) for n in numbers[1:3]] == [-3.0, -(2.0**-149)]


@pytest.mark.parametrize(
    "name",
    ["uint4:group32:fp16:offset(uint6:group8:fp16)", "book4:tensor:fp32",
     "uint4:group32:fp16:offset(group64:fp16)"],
)  # fmt: skip
def test_what_no_part_knows(name: str) -> None:
    assert not known((parse(name),), ())


def test_elements_that_no_part_knows() -> None:
    with registered():
        assert not known((parse("made4:group32:fp32"),), ())
        with pytest.raises(TypeError, match="reference"):
            shader_of("made4:group32:fp32")
