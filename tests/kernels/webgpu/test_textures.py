# SPDX-License-Identifier: BSD-3-Clause
"""Textures give the reference's bits, as buffers do: formats x dtypes x shapes x hard numbers."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.webgpu import textures
from blockscale.kernels.webgpu.gpu.memory import upload
from blockscale.kernels.webgpu.spec import known
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from tests.kernels.webgpu.here import here
from tests.support.same import same
from tests.support.webgpu_textures import DTYPES, differing

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
MORE = [
    "int8:block2x3x2x3:fp32:asym", "int4:tile2x3:fp16", "e4m3:tile3x2:bf16",
    "uint8:group5:fp32:asym", "int8:block2x2x2x2x2x2:fp32", "e2m1:block2x2x4:e8m0/even",
    "int3:flat7:fp32", "int8:flat6@0:fp32", "int12:group6:fp32:asym", "uint16:token:fp32",
    "int8:channel1:fp32:full", "int5:group8@0:pow2/ceil", "int8:group32:fp32:recip",
    "int8:group4:fp32:offset", "int4:group8:e8m0/rceil:stochastic", "e4m3:group6:fp32:stochastic",
    "int8:tensor:fp32:nearest_away", "int8:token:fp32:toward_zero",
    "uint4:group5:fp32:asym(fp16)",
]  # fmt: skip
FAST = ["mxfp6", "nvfp4", "ternary", MORE[0], MORE[1], MORE[3], MORE[8]]
SHAPES = [(6,), (5, 18), (4, 3, 10), (2, 3, 4, 5), (2, 4, 2, 2, 2, 6)]


def fits(fmt: str, shape: tuple[int, ...]) -> bool:
    try:
        parse(fmt).block.scale_shape(shape)
    except ValueError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FAST)
def test_bits(fmt: str) -> None:
    for shape in SHAPES[1:4:2]:
        if fits(fmt, shape):
            assert differing(fmt, shape, torch.float32) == [], shape
    assert differing(fmt, SHAPES[4], torch.bfloat16) == []


def test_stochastic_rounding() -> None:
    """Each element draws by its place in the tensor, whichever texel it lies in."""
    assert differing("int8:group4:fp32:stochastic", (3, 5, 18), torch.float32) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", [*bs.formats(), *MORE])
def test_every_format(fmt: str, dtype: torch.dtype) -> None:
    if not known((parse(fmt),), ()):
        pytest.skip(f"no shader supports {fmt}")
    for shape in SHAPES:
        if fits(fmt, shape):
            assert differing(fmt, shape, dtype) == [], shape


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)], ids=str)
def test_nothing_to_quantize(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    for fmt in ("mxfp4", "uint8:group4:fp32:asym"):
        expected = reference.choose_qparams(x, parse(fmt))
        q = textures.quantize(textures.texture(x), fmt)
        assert same(here(q.qparams.scale), expected.scale)
        assert textures.dequantize(q).tensor().shape == shape


def test_rank_0() -> None:
    assert differing("int8:tensor:fp32", (), torch.float32) == []


def test_a_quantized_tensor_goes_into_a_texture_and_comes_back() -> None:
    x = torch.randn(5, 19)
    q = bs.quantize(x, "int4:group8:fp32")
    there = textures.quantized(q.operand)
    assert same(textures.dequantize(there).tensor(), q.dequantize())


def test_bad_input() -> None:
    x = textures.texture(torch.randn(4, 6))
    with pytest.raises(TypeError, match=r"expected float32, bfloat16 or float16, found int32"):
        textures.quantize(textures.texture(torch.ones(3, dtype=torch.int32)), "int8")
    with pytest.raises(ValueError, match=r"int8.*expected torch.float32 of shape \(1, 1\)"):
        textures.quantize(x, "int8:tensor:fp32", QParams(torch.ones(3)))
    with pytest.raises(ValueError, match=r"stochastic rounding needs a seed"):
        textures.quantize(x, "int8:tensor:fp32:stochastic")
    with pytest.raises(TypeError, match=r"float32, bfloat16 or float16, got torch.float64"):
        textures.dequantize(textures.quantize(x, "int8"), torch.float64)
    with pytest.raises(TypeError, match=r"no shader supports book4.*bs.quantize"):
        textures.quantize(x, "book4:tensor:fp32")


def _there(x: Tensor) -> Tensor:
    return WebGPUTensor(upload(x), tuple(x.shape), x.dtype)


GIVEN = [
    ("int8:block1x2x3x5:fp32:asym", (2, 4, 6, 10)),
    ("uint4:group4:fp32:asym", (3, 10)),
    ("int8:token:bf16", (3, 5)),
    ("mxfp4", (2, 70)),
    ("int8:tensor:fp32:asym", (3, 5)),
]


@pytest.mark.some(6)
@pytest.mark.parametrize("there", [False, True], ids=["cpu", "webgpu"])
@pytest.mark.parametrize(("fmt", "shape"), GIVEN, ids=str)
def test_a_scale_and_a_zero_point(fmt: str, shape: tuple[int, ...], there: bool) -> None:
    x, other = torch.randn(shape), bs.quantize(torch.randn(shape) * 2, fmt)
    parts = {"scale": other.scale, "zero_point": other.zero_point}
    expected = bs.quantize(x, fmt, **parts)
    if there:  # in buffers of the device
        parts = {name: part if part is None else _there(part) for name, part in parts.items()}
    t = textures.texture(x)
    q = textures.quantize(t, fmt, **parts)
    assert same(q.codes.tensor(), expected.packed)
    assert same(textures.dequantize(q).tensor(), expected.dequantize())
    assert same(textures.fake_quantize(t, fmt, **parts).tensor(), expected.dequantize())


def test_a_scale_of_one_element_has_any_rank() -> None:
    x, fmt = torch.randn(3, 5), "int8:tensor:fp32:asym"
    for rank in range(4):
        scale, zero = torch.full((1,) * rank, 0.03), torch.full((1,) * rank, 7, dtype=torch.int32)
        expected = bs.quantize(x, fmt, scale, zero)
        q = textures.quantize(textures.texture(x), fmt, scale=scale, zero_point=zero)
        assert same(q.codes.tensor(), expected.packed)


S, Z, ASYM = torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int32), "int8:token:fp32:asym"


@pytest.mark.parametrize("function", [textures.quantize, textures.fake_quantize])
@pytest.mark.parametrize(
    ("fmt", "parts", "kind", "message"),
    [
        (ASYM, {"scale": S}, ValueError, "needs a zero_point"),
        ("int8:token:fp32", {"scale": S, "zero_point": Z}, ValueError, "has no zero_point"),
        (ASYM, {"zero_point": Z}, ValueError, "zero_point was passed without its scale"),
        (ASYM, {"scale": S.T, "zero_point": Z}, ValueError, r"of shape \(4, 1\).*\(1, 4\)"),
        (ASYM, {"scale": S, "zero_point": S}, ValueError, "expected torch.int32"),
        (ASYM, {"scale": 0.5, "zero_point": Z}, TypeError, "a tensor as scale, found a float"),
        ("nvfp4", {"scale": S}, ValueError, "it also needs outer: pass everything as qparams="),
        (ASYM, {"qparams": S}, TypeError, "found a Tensor: pass tensors by name, scale="),
        (ASYM, {"qparams": QParams(S, None, Z), "scale": S}, ValueError, "pass qparams alone"),
    ],
)
def test_a_scale_that_does_not_fit(function, fmt: str, parts, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        function(textures.texture(torch.randn(4, 6)), fmt, **parts)


def test_what_is_no_texture() -> None:
    x = torch.randn(4, 6)
    for function in (textures.quantize, textures.fake_quantize, textures.choose_qparams):
        with pytest.raises(
            TypeError, match=r"found a Tensor: make one with textures.texture\(x\) from"
        ):
            function(x, "int8")
    with pytest.raises(
        TypeError, match=r"found a Texture: make one with textures.quantize\(t, fmt\)"
    ):
        textures.dequantize(textures.texture(x))
    with pytest.raises(TypeError, match=r"found a QTensor: pass the `operand` of a QTensor"):
        textures.quantized(bs.quantize(x, "int8"))
    with pytest.raises(
        TypeError, match=r"expected a tensor, found a list: convert it with torch.as_tensor"
    ):
        textures.texture([1.0])
