# SPDX-License-Identifier: BSD-3-Clause
"""Every primitive against the reference: named formats, blocks, dtypes, numbers of every kind."""

import re

import pytest
import torch

import blockscale as bs
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, operand
from blockscale.core.parse import CATALOG, parse
from blockscale.core.reference import QParams
from blockscale.kernels.webgpu import webgpu
from blockscale.kernels.webgpu.gpu.shader import Signed
from blockscale.kernels.webgpu.primitives import form
from blockscale.kernels.webgpu.spec import Constants, FormatRoles
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import DTYPES, hard, wrong
from tests.support.cuda_formats import CODEBOOKS, FLOAT_ZEROS, OFFSETS
from tests.support.encoded import slope
from tests.support.same import same
from tests.support.some import crossed

OTHERS = (
    "int8:group32:fp32:recip", "int8:group32:fp32:nearest_away", "uint4:group16:e4m3:asym",
    "int4:group32:fp32:full", "int4:group32:fp16:signed", "int4:group32:fp32:half",
    "e2m1:group32:pow2/nearest", "e3m2:group16:pow2/tosa", "uint8:token:e8m0:asym",
    "int8:group32:e8m0/rceil", "int12:group24:e8m0", "binary:token:e8m0", "ternary:group16:bf16",
    "int8:group16:(e5m2:token:fp32)", "e2m1:group16:(e4m3:token:bf16)", "e2m1:group16:e4m3/inv",
    "uint4:group32:fp32:asym(fp16)", "uint4:tile2x16:bf16:asym(bf16)",
    "e4m3:group32:fp32:stochastic", "int4:group32:fp32:down", "uint1:group32:fp32",
    "book(0.25,1):group32:fp32", "book(3,0.5,1,2):group16:bf16",
)  # fmt: skip
BLOCKS = (
    "tensor", "token", "channel0", "channel1", "channel-1", "group1", "group3", "group8", "group10",
    "group4096", "group16@0", "group2@-2", "tile4x16", "tile128x128", "flat7", "flat64", "flat4@0",
    "block2x3x2", "block2x*x4", "block*x1x8",
)  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    crossed(2, [
        "int8:group32:fp32", "nvfp4", "uint4:tile2x16:fp16:asym", "ternary",
        "int5:group10:fp32:stochastic",
    ]),
)  # fmt: skip
def test_one_format_of_each_kind(fmt: str) -> None:
    assert not wrong(hard((4, 96), torch.float32), fmt)


# Shapes whose kernels are the same ones, most often: of whole blocks, cut off, one number.
WHOLE, CUT, ONE = ((4, 96), (3, 5, 64), (2, 256, 128)), ((4, 37), (5, 0)), ((1,),)
FORMATS = (*CATALOG, *OTHERS, *CODEBOOKS, *OFFSETS, *FLOAT_ZEROS)


def aspects(fmt: str) -> tuple[str, str, str, str]:
    """The element, the block, the scale and what else a format's spelling has, of which each meets
    each shape and dtype; of codebooks that are spelled out, how many bits they have."""
    form = parse(fmt)
    element, block, scale, *others = re.split(r":(?![^(]*\))", str(form))
    if element.startswith("book("):
        element = f"book of {form.element.bits} bits"
    return element, block, scale, ":".join(others)


def fits(fmt: str, shape: tuple[int, ...]) -> bool:
    try:
        parse(fmt).block.scale_shape(shape)
    except ValueError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.pairs(fmt=aspects)
@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("fmt", "shapes"),
    [
        (fmt, shapes)
        for fmt in FORMATS
        for shapes in (WHOLE, CUT, ONE)
        if any(fits(fmt, shape) for shape in shapes)
    ],
)
def test_every_format(
    fmt: str, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, to: torch.dtype
) -> None:
    bad = {}
    for shape in shapes:
        x = torch.randn(shape).to(dtype) if len(shape) > 2 else hard(shape, dtype)
        if fits(fmt, shape) and (found := wrong(x, fmt, decodes=(to,))):
            bad[shape] = found
    assert not bad


SHAPES_of_blocks = ((6, 20), (4, 6, 8), (3, 5, 4, 10), (2, 300, 520))
CASES_of_blocks = [
    (element, block, shape)
    for element in ("int8:{}:fp32", "e2m1:{}:e8m0", "uint3:{}:bf16:asym", "ternary:{}:fp32")
    for block in BLOCKS
    for shape in SHAPES_of_blocks
    if fits(element.format(block), shape)
]


@pytest.mark.slow
@pytest.mark.pairs
@pytest.mark.parametrize(("element", "block", "shape"), CASES_of_blocks)
def test_every_block(element: str, block: str, shape: tuple[int, ...]) -> None:
    assert not wrong(hard(shape, torch.float32), element.format(block))


@pytest.mark.slow
def test_rank_zero_and_empty_tensors() -> None:
    for fmt in ("int8:tensor:fp32", "int4:tensor:fp32", "binary:tensor:bf16"):
        assert not wrong(torch.tensor(-3.25), fmt)
    assert not wrong(torch.empty(0, 64), "int8:tensor:fp32")
    assert not wrong(torch.empty(3, 0), "mxfp4")


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = form.shader_of

    def other(fmt: Format) -> tuple[FormatRoles, Constants]:
        parts, constants = known(fmt)
        turned = dict(constants)
        turned["EMAX"] = Signed(int(turned["EMAX"]) + 1)  # type: ignore[arg-type]
        return parts, tuple(turned.items())

    monkeypatch.setattr(form, "shader_of", other)
    found = wrong(hard((2, 64), torch.float32), "e3m2:group32:e8m0/floor")
    assert {"choose_qparams 0", "choose_quantize 0", "fake_quantize"} <= set(found)


def test_bad_input_is_told_before_anything_runs() -> None:
    x = torch.randn(4, 64)
    with bs.use("webgpu"):
        with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
            bs.quantize(x.double(), "int8")
        with pytest.raises(ValueError, match="tile4x4"):
            bs.quantize(x[0], "int8:tile4x4:fp32")
        with pytest.raises(ValueError, match="scale"):
            bs.quantize(x, "int8:group32:fp32", scale=torch.ones(3, 2))
        with pytest.raises(ValueError, match="given"):
            bs.quantize(x, "int8:group8:e8m0/given")
        assert bs.quantize(x, "int8").codes.shape == (4, 64)


def differing(x: torch.Tensor, fmt: str) -> list[int]:
    with bs.use("reference"):
        expected = P.choose_qparams(x, fmt)
    with bs.use("webgpu"):
        found = P.choose_qparams(x, fmt)
    return [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not same(a, b)]


@pytest.mark.parametrize(
    "fmt", ["int8:tensor:fp32", "uint8:channel1:bf16:asym", "ternary:tensor:fp32"]
)
def test_large_blocks_are_merged_from_slices(fmt: str) -> None:
    x = hard((1200, 300), torch.float32, finite=True).clamp(-1e3, 1e3)
    assert not differing(x, fmt)


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", ["int8:group4:fp32", "mxfp8", "uint4:group8:fp32:offset"])
@pytest.mark.parametrize("value", [0.0, -0.0, torch.inf, torch.nan, 1e-45, -3.4e38])
def test_blocks_of_one_number(fmt: str, value: float) -> None:
    assert not differing(torch.full((2, 32), value), fmt)


SCALES = torch.tensor([0.0, -0.0, 1e-45, -2.5, 3e38, torch.inf, torch.nan, 1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_any_scale_and_dtype(dtype: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).repeat(8, 1)
    by = operand(codes, QParams(SCALES.reshape(8, 1)), "int8:token:fp32", 256)
    with bs.use("reference"):
        expected = P.dequantize(by, dtype)
    with bs.use("webgpu"):
        assert same(P.dequantize(by, dtype), expected)


@pytest.mark.parametrize("fmt", ["int4:group32:fp32", "e3m2:group32:e8m0", "int12:group8:fp32"])
def test_rows_that_end_within_a_byte(fmt: str) -> None:
    for columns in (33, 64):
        q = bs.quantize(torch.randn(5, columns), fmt)
        by = operand(q.packed, q.qparams, fmt, columns)
        with bs.use("webgpu"):
            assert same(P.dequantize(by, torch.float32), q.dequantize())


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", ["mxfp4", "int3:group10:fp32", "uint8:token:fp32:asym"])
def test_tensors_on_the_device_stay_there(fmt: str) -> None:
    x = torch.randn(4, 70)
    there = x.to(webgpu())
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(x, fmt, None)
        values = P.dequantize(operand(packed, P.from_list(parts, parse(fmt)), fmt, 70), x.dtype)
    found, *chosen = P.choose_quantize(there, fmt, None)
    by = operand(found, P.from_list(chosen, parse(fmt)), fmt, 70)
    decoded = P.dequantize(by, x.dtype)
    faked = P.fake_quantize(there, Quantizer(None, None, None, fmt))
    assert all(isinstance(each, WebGPUTensor) for each in (found, *chosen, decoded, faked))
    assert all(same(a.cpu(), b) for a, b in zip((found, *chosen), (packed, *parts), strict=True))
    assert same(decoded.cpu(), values) and same(faked.cpu(), values)


@pytest.mark.parametrize("fmt", ["mxfp4", "int8:group32:fp32"])
def test_gradients_of_other_dtypes_and_strides(fmt: str) -> None:
    x = hard((96, 4), torch.float32).t()
    by = Quantizer(None, None, None, fmt)
    for gradient in (slope(x), slope(x).bfloat16(), slope(x).double()):
        with bs.use("reference"):
            expected = P.straight_through(gradient, x, by), P.fake_quantize(x, by)
        with bs.use("webgpu"):
            found = P.straight_through(gradient, x, by), P.fake_quantize(x, by)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


EIGHTEEN = ",".join(str(1 + each / 2) for each in range(18))


@pytest.mark.parametrize(
    ("fmt", "least"),
    [("book(1,2,4):tensor:fp32", 1), (f"book({EIGHTEEN}):tensor:fp32", 1),
     ("book(-0,0,1):tensor:fp32", 0), ("book(-2,-1,3):tensor:fp32", -2)],
)  # fmt: skip
def test_gradients_pass_from_the_smallest_value_of_a_table_on(fmt: str, least: float) -> None:
    near = torch.tensor([float(least)])
    x = torch.cat([near.nextafter(near - 1), near, near.nextafter(near + 1), torch.zeros(1)])
    x = torch.cat([x, torch.tensor([-0.0, -1e-45, torch.nan, -torch.inf])])
    by = Quantizer(torch.ones(1), None, None, fmt)
    for backend in ("reference", "webgpu"):
        with bs.use(backend):
            found = P.straight_through(torch.ones(8), x, by)
        assert found.tolist() == [float(least <= each) for each in x.tolist()], backend


DTYPES_of_fake_quantize = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("zero", DTYPES_of_fake_quantize)
def test_gradients_with_zero_points_that_are_floats(zero: str) -> None:
    """Limits are moved by the zero point, which does not hide what is no number."""
    x = torch.tensor([-1.0, -0.75, 0.0, 15.0, 15.25, 15.5, torch.nan, torch.inf, -torch.inf])
    moved = torch.tensor([0.25]).to(DTYPES_of_fake_quantize[zero])
    by = Quantizer(torch.ones(1), moved, None, f"uint4:tensor:fp32:asym({zero})")
    for backend in ("reference", "webgpu"):
        with bs.use(backend):
            found = P.straight_through(torch.ones(9), x, by)
        assert found.tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0], backend  # ties of x + 0.25 to even


def test_shapes_have_to_agree() -> None:
    by = Quantizer(None, None, None, "int8")
    with bs.use("webgpu"), pytest.raises(ValueError, match="gradient of shape"):
        P.straight_through(torch.ones(3), torch.ones(4), by)


ELEMENTS = (
    "binary", "ternary", "int2", "uint1", "uint3", "e2m1", "int5", "int6", "e3m2", "int7", "int8",
    "uint8", "int9", "int12", "uint13", "int16", "uint16", "nf4",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ELEMENTS)
def test_codes_are_packed_and_unpacked_as_by_the_reference(name: str) -> None:
    fmt = f"{name}:tensor:fp32"
    element = parse(fmt).element
    generator = torch.Generator().manual_seed(element.bits)
    for shape in ((), (1,), (7,), (2, 3, 37), (64, 64), (5, 0), (0, 4)):
        patterns = torch.randint(0, 2**element.bits, shape, generator=generator)
        if name == "ternary":
            patterns[patterns == 2] = 0
        codes = element.from_bits(patterns.to(torch.uint8 if element.bits <= 8 else torch.int32))
        with bs.use("reference"):
            packed = P.pack(codes, fmt)
        with bs.use("webgpu"):
            assert same(P.pack(codes, fmt), packed), shape
            if shape:
                assert same(P.unpack(packed, fmt, shape[-1]), codes), shape


def test_other_dtypes_are_told() -> None:
    with bs.use("webgpu"):
        with pytest.raises(TypeError, match="int8"):
            P.pack(torch.zeros(4, dtype=torch.int64), "int8")
        with pytest.raises(ValueError, match="packed"):
            P.unpack(torch.zeros(4, dtype=torch.uint8), "int4", 64)
