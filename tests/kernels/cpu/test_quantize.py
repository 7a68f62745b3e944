# SPDX-License-Identifier: BSD-3-Clause
"""Inputs at which rounding and random numbers turn over: codes are the reference's."""

import math
import struct

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.quantize import block_errors
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import settings, wrong
from tests.support.core_pack import NAMES, SHAPES, random_codes
from tests.support.cpu_primitives import DTYPES as BY_NAME
from tests.support.cpu_primitives import ROUNDINGS, RULES, rough
from tests.support.cpu_primitives_memory import FORMATS
from tests.support.cpu_quantize import FLT_MAX, ODD, SMALL, edges
from tests.support.exact import pack_row
from tests.support.same import same

DTYPES = list(BY_NAME.values())
MORE_ODD = [
    *ODD,
    math.inf,
    -math.inf,
    math.nan,
    3e38,
    -1e-40,
    2.0**22,
    2.0**23 + 1,
    2.0**24,
    -(2.0**31),
]


def check_rounding(element: str, scale: float, rounding: str) -> None:
    fmt = f"{element}:tensor:fp32" + rounding
    given = QParams(torch.full((1,), scale))
    x = torch.cat([edges(element) * scale, torch.tensor([math.nan])])
    assert wrong(x, fmt, torch.tensor([5, 0]), qparams=given) == []


@pytest.mark.some(4)
@pytest.mark.parametrize("element", SMALL)
def test_every_midpoint(element: str) -> None:
    for rounding in ("", *ROUNDINGS):
        if not rounding or parse(f"{element}:tensor:fp32").element.roundings_matter:
            check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("element", ["int8", "e4m3", "e2m1", "ternary", "log8", "uint16"])
@pytest.mark.parametrize("scale", [2.0**-126, 3 * 2.0**-140, 2.0**100])
def test_midpoints_of_very_small_and_large_steps(element: str, scale: float) -> None:
    check_rounding(element, scale, "")


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["", *ROUNDINGS])
@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "int12"])
def test_every_midpoint_of_wide_integers(element: str, rounding: str) -> None:
    check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "fmt", ["e4m3:token:fp32", "int8:channel0:fp16:asym", "e2m1:group16:e4m3", "int4:tensor:fp32"]
)
def test_every_16_bit_input(fmt: str, dtype: torch.dtype) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(64, 1024)
    assert wrong(x, fmt) == []
    assert wrong(x.nan_to_num(0, 0, 0), fmt) == []


ANY = [-0.5, 0.0, -0.0, 2.0**-149, -(2.0**-140), 3e38, -FLT_MAX, 1.0, -1.0, 2.0**-126, 0.3]
GIVEN = (
    *("int4:group16:fp32", "uint4:group16:fp32:asym", "int8:group16:fp32:recip"),
    *("e2m1:group16:fp32", "e4m3:group16:fp32:recip", "nf4:group16:fp32", "log8f3:group16:fp32"),
    *("fp4:group16:fp32:recip", "binary:group16:fp32", "int12:group16:fp32", "int8:group1:fp32"),
    *("uint4:group16:fp32:offset", "nf4:group16:fp32:recip:offset", "e2m1:group16:pow2/floor"),
    *("int8:group16:pow2/ceil", "fp4:group16:pow2/even:offset(fp32)", "int3:group7:fp32:half"),
    *("int4:group16:fp32:stochastic", "e4m3:group16:fp32:up", "uint16:group5:fp32:offset:down"),
    "book(1,2,5):group16:fp32",
)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", GIVEN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_given_scales_of_any_sign_and_size(fmt: str, dtype: torch.dtype) -> None:
    """Subnormal and 0, too, as files have them; offsets likewise."""
    form = parse(fmt)
    x = torch.cat(
        [torch.randn(13, 170) * 3, torch.tensor(MORE_ODD).repeat(11)[:170].expand(13, 170)]
    )
    x = x.to(dtype)
    stored = form.stored(x.shape)
    places = torch.arange(math.prod(stored["scale"][1])).reshape(stored["scale"][1])
    parts = {"scale": torch.tensor(ANY)[places % len(ANY)]}
    if form.asym:
        parts["zero_point"] = (places % 16).int()
    if form.offset is not None:
        parts["offset"] = torch.tensor([*ANY, 7.0])[places % (len(ANY) + 1)]
    assert wrong(x, fmt, qparams=QParams(**parts)) == []


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["e4m3:token", "e5m2:tensor", "uint8:group3", "e3m2r1:tensor"])
@pytest.mark.parametrize("rest", ["", ":recip"])
def test_given_scales_of_two_levels(inner: str, rest: str) -> None:
    """Every code, signs, 0 and NaN among them, under outer scales of any sign."""
    x = torch.cat([torch.randn(40, 256 * 4), torch.tensor(MORE_ODD).repeat(64).expand(2, 1024)])
    for element in ("int4", "e2m1", "nf4", "e4m3"):
        fmt = f"{element}:group4:({inner}:fp32){rest}"
        form = parse(fmt)
        bits = form.scale.inner.bits
        codes = (torch.arange(42 * 256) % 2**bits).to(torch.uint8).reshape(42, 256)
        shape = form.stored(x.shape)["outer"][1]
        for first in range(0, len(ANY), 3):
            count = math.prod(shape)
            outer = torch.tensor(ANY).roll(-first).repeat(count)[:count]
            given = QParams(codes, outer.reshape(shape))
            assert wrong(x, fmt, qparams=given) == [], (fmt, first)


SEEDS = [(0, 0), (-1, 1), (2**32, 2), (2**63 - 1, 3), (-(2**63), 2**32 - 5), (7, 2**34 - 70)]


@pytest.mark.parametrize("seed", [*SEEDS, (7, 2**34 - 1), (3, 2**62)], ids=str)
def test_random_numbers(seed: tuple[int, int]) -> None:
    """Around 2^34 elements the counter's second word begins; chunks start anywhere in a block."""
    x = torch.randn(3, 4099)
    for fmt in ("int8:token:fp32:stochastic", "e2m1:group7:e8m0/floor:stochastic"):
        assert wrong(x, fmt, torch.tensor(seed)) == []


@pytest.mark.parametrize(
    "seed", [torch.tensor([7, 99, 3, 5])[::2], torch.tensor(5).expand(2), torch.tensor([9])]
)
def test_seeds_in_any_memory(seed: Tensor) -> None:
    assert wrong(torch.randn(4, 40), "int8:token:fp32:stochastic", seed) == []


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "e4m3:tensor:fp32"])
def test_numbers_that_lie_channels_first(fmt: str) -> None:
    """Under one scale bytes are turned in their place: the same codes, in order; others are not."""
    for shape in ((2, 5, 7, 3), (1, 64, 33), (2, 3, 4, 5, 6), (0, 3, 4, 5)):
        x = torch.randn(shape).movedim(1, -1)
        scale = torch.full((1,) * x.ndim, 0.02)
        zero = torch.full(scale.shape, 100, dtype=torch.int32) if "asym" in fmt else None
        by = Quantizer(scale, zero, None, fmt)
        for given in (x, x.to(torch.bfloat16), x[..., ::2], x.transpose(0, 1)):
            with bs.use("reference"):
                expected = P.quantize(given, by)
            with bs.use("cpu"):
                codes = P.quantize(given, by)
            assert codes.is_contiguous() and codes.dtype == expected.dtype
            assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))


def around_powers() -> Tensor:
    """One number a row: mantissas at which rules turn over, in every binade of float32."""
    special = [0, 1, 2, 0x3504F2, 0x3504F3, 0x3504F4, 0x400000, 0x600000, 0x7FFFFE, 0x7FFFFF]
    for y in range(8):  # thresholds of `even`, `rceil` and `tosa`
        for at in (2**23 - 2 ** (22 - y), 2**23 - 2 ** (23 - y), 3 * 2**21):
            special += [at - 1, at, at + 1]
    fractions = torch.tensor([f for f in special if 0 <= f < 2**23], dtype=torch.int32).unique()
    exponents = torch.cat([torch.arange(0, 24), torch.arange(24, 232, 23), torch.arange(232, 255)])
    bits = (exponents[:, None].int() << 23 | fractions[None]).flatten()
    subnormal = torch.tensor([1 << k for k in range(23)], dtype=torch.int32)
    return torch.cat([bits, subnormal, subnormal - 1]).view(torch.float32)[:, None]


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", ["e8m0", "pow2"])
@pytest.mark.parametrize("element", ["int8", "uint4", "e2m1", "e4m3", "int16", "e7m0", "log8"])
def test_rules_turn_over_in_every_binade(element: str, kind: str) -> None:
    x = around_powers()
    for rule in RULES:
        assert wrong(x, f"{element}:token:{kind}/{rule}") == [], rule


@pytest.mark.parametrize("scale", ["fp32", "fp16", "bf16", "e4m3", "(uint8:tensor:fp32)"])
def test_float_scales_in_every_binade(scale: str) -> None:
    for element in ("int8", "e2m1", "int5", "ternary", "binary"):
        assert wrong(around_powers(), f"{element}:token:{scale}") == [], element


NAN = struct.unpack("f", b"\1\0\x80\x7f")[0]  # signalling, the least payload


@pytest.mark.some(6)
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, -math.nan, NAN, -NAN], ids=str)
def test_one_number_that_is_not_finite(odd: float) -> None:
    """At each end of a range it must be seen by itself."""
    for block in ("tensor", "group16", "group32", "channel1", "tile2x7"):
        for under in ("int8:{}:fp32:asym", "int4:{}:fp32:full", "uint4:{}:fp32", "int8:{}:fp32"):
            x = torch.randn(3, 300)
            x[1, 161] = odd
            assert wrong(x, under.format(block)) == [], (under, block)
        for under in ("int8:{}:e8m0/floor:asym", "ternary:{}:fp32", "binary:{}:e4m3"):
            assert wrong(x, under.format(block)) == [], (under, block)


@pytest.mark.parametrize("fmt", ["ternary:token:fp32", "binary:token:e8m0/nearest"])
@pytest.mark.parametrize("exponent", [-149, -127, -100, -97, -96, 0, 100, 127])
def test_means_in_every_range(fmt: str, exponent: int) -> None:
    """Where t_i takes two factors, and where sums pass 2^32."""
    g = torch.Generator().manual_seed(exponent % 7)
    x = (torch.rand(4, 3000, generator=g) + 0.5).mul_(2.0**exponent).clamp_max_(3e38)
    for dtype in (torch.float32, torch.bfloat16):
        assert wrong(x.to(dtype), fmt) == [], dtype


@pytest.mark.slow
@pytest.mark.parametrize("byte", [0, 1, 2, 126, 127, 128, 252, 253, 254, 255])
def test_given_bytes(byte: int) -> None:
    """Also integers whose step is subnormal, so that its inverse overflows."""
    for fmt in ("int16", "int8", "uint16", "int2", "e4m3", "log8", "binary"):
        spelled = f"{fmt}:tensor:e8m0/floor"
        x = torch.tensor([*ODD, 1.0, -1.5, 2.5]) * torch.tensor([[1.0], [2.0**-130], [2e-6]])
        given = QParams(torch.tensor([[byte]], dtype=torch.uint8))
        assert wrong(x, spelled, qparams=given) == [], fmt


GIVEN_of_dequantize = [
    1.0,
    3.0,
    -2.0,
    0.0,
    -0.0,
    2.0**-149,
    2.0**-127,
    1.5e-39,
    FLT_MAX,
    math.inf,
    -math.inf,
]
UNDER = ("int8", "int8:recip", "uint12:asym", "uint3:asym:stochastic", "e4m3", "e4m3:recip:down")
UNDER += ("e2m1", "e2m1:stochastic", "binary", "binary:recip")


@pytest.mark.some(4)
@pytest.mark.parametrize("scale", [*GIVEN_of_dequantize, math.nan])
def test_given_float_scales(scale: float) -> None:
    x = torch.cat([torch.randn(50), torch.tensor(ODD)])
    for under in UNDER:
        element, _, option = under.partition(":")
        zero = torch.tensor([3], dtype=torch.int32) if "asym" in option else None
        fmt = ":".join([element, "tensor", "fp32", *filter(None, [option])])
        assert wrong(x, fmt, qparams=QParams(torch.tensor([scale]), None, zero)) == [], fmt


@pytest.mark.slow
@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "uint3", "uint1"])
def test_given_zero_points(element: str) -> None:
    low, high = parse(f"{element}:tensor:fp32:asym").element.limits(True)
    for rounding in ("", *(f":{r}" for r in ROUNDINGS)):
        for zero in (low, low + 1, 0, high - 1, high):
            x = edges("uint3") - torch.tensor([[zero], [low], [high], [0]])
            given = QParams(torch.ones(1, 1), None, torch.tensor([[zero]], dtype=torch.int32))
            assert wrong(x, f"{element}:tensor:fp32:asym{rounding}", qparams=given) == [], zero


SHAPES_of_dequantize = [(e, m) for e in range(1, 8) for m in range(7) if 2 <= e + m < 8]


@pytest.mark.parametrize(("exponent", "mantissa"), SHAPES_of_dequantize)
def test_every_code_of_every_minifloat(isa: str, exponent: int, mantissa: int) -> None:
    """A converter of float16 must not be asked for exponents that mean something else there."""
    del isa
    fmt = f"e{exponent}m{mantissa}:token:fp32"
    codes = torch.arange(2 ** (1 + exponent + mantissa), dtype=torch.uint8).repeat(2, 3)
    packed, scale = P.pack.reference(codes, fmt), torch.tensor([[1.0], [0.3]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        args = (Operand(packed, scale, None, None, fmt, codes.shape[1]), dtype)
        found, expected = P.dequantize(*args), P.dequantize.reference(*args)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


def layouts() -> dict[str, Tensor]:
    x = rough((6, 5, 8, 16), 1)
    return {
        "transposed": rough((65, 33), 1).t(),
        "permuted": x.permute(2, 0, 3, 1),
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "one column of two": torch.stack([x, x + 1], -1)[..., 1],
        "every third row, from the second": rough((40, 33), 1)[1::3],
        "inner columns": rough((40, 70), 1)[:, 3:68],
        "expanded": rough((1, 40), 1).expand(7, 40),
        "expanded columns": rough((7, 1), 1).expand(7, 40),
        "flipped": rough((7, 40), 1).flip(0),
        "one row of a large stride": rough((3, 40), 1)[1:2],
        "one column": rough((40, 7), 1)[:, 2:3],
        "a view whose sign is flipped": torch.complex(x, x).conj().imag,
    }


@pytest.mark.some(8)
@pytest.mark.parametrize("name", layouts())
def test_strides(name: str) -> None:
    """Also the strides of the outputs are the reference's."""
    for fmt in FORMATS:
        for dtype in (torch.float32, torch.bfloat16):
            x = layouts()[name]
            assert wrong(x if dtype == x.dtype else x.to(dtype), fmt) == [], fmt


@pytest.mark.parametrize("isa", _native.isas())
def test_tensors_of_autograd_and_inference(isa: str) -> None:
    x, fmt = torch.randn(5, 40), "int4:group16:fp32"
    plain = bs.fake_quantize(x, fmt)
    with settings(isa, 1):
        leaf = x.clone().requires_grad_()
        result = bs.fake_quantize(leaf, fmt)
        result.sum().backward()
        assert same(result.detach(), plain)
        assert same(leaf.grad, torch.ones(5, 40))
        assert same(bs.quantize(leaf, fmt).dequantize(), plain)
        with torch.inference_mode():
            assert same(bs.fake_quantize(x.clone(), fmt), plain)
            codes = bs.quantize(x.clone(), fmt)
        assert same(codes.dequantize(), plain)


MORE = [(1, 2047), (1, 2048), (3, 2049), (2, 4099), (65, 300), (20000,), (5, 1), (2, 3, 4, 5)]
WIDTHS = [b for b in range(1, 16) if b != 8]
GUARD = 64


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(isa: str, name: str) -> None:
    fmt = f"{name}:tensor:fp32"
    for shape in [*SHAPES, *MORE]:
        codes = random_codes(name, shape)
        with bs.use("reference"):
            expected = P.pack(codes, fmt)
        with bs.use("cpu"):
            packed = P.pack(codes, fmt)
            assert same(packed, expected), shape
            if shape:
                assert same(P.unpack(packed, fmt, shape[-1]), codes), shape


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float32], ids=str)
def test_codes_of_other_dtypes(isa: str, dtype: torch.dtype) -> None:
    """What does not fit is cut to its low bits, as the reference does."""
    codes = torch.randint(-20, 20, (4, 9)).to(dtype)
    for name in ("int4", "int3", "int12", "uint12", "uint1", "binary", "ternary"):
        results = []
        for backend in ("reference", "cpu"):
            with bs.use(backend):
                try:
                    results.append(P.pack(codes, f"{name}:token:fp32"))
                except (RuntimeError, NotImplementedError) as error:
                    results.append(type(error))
        expected, found = results
        assert found == expected if isinstance(expected, type) else same(found, expected), name


def test_strides_and_alignment(isa: str) -> None:
    for name in ("int4", "int3", "int12", "uint13", "binary", "int8", "int16"):
        fmt, codes = f"{name}:tensor:fp32", random_codes(name, (33, 24))
        with bs.use("reference"):
            expected = P.pack(codes.t(), fmt), P.pack(codes, fmt)
        data = bytearray(1) + bytearray(expected[1].flatten().view(torch.uint8).numpy())
        moved = torch.frombuffer(data, dtype=expected[1].dtype, offset=1)
        with bs.use("cpu"):
            assert same(P.pack(codes.t(), fmt), expected[0])
            assert same(P.unpack(moved.reshape(expected[1].shape), fmt, 24), codes)
            columns = expected[0].t().contiguous().t()
            assert same(P.unpack(columns, fmt, 33), codes.t().contiguous())


def guarded(size: int, offset: int) -> Tensor:
    return torch.full((GUARD + offset + size + GUARD,), 0xA5, dtype=torch.uint8)


def untouched(raw: Tensor, size: int, offset: int) -> bool:
    start = GUARD + offset
    return bool((raw[:start] == 0xA5).all() and (raw[start + size :] == 0xA5).all())


@pytest.mark.some(4)
@pytest.mark.parametrize("bits", WIDTHS)
def test_nothing_beside(isa: str, bits: int) -> None:
    """Rows of every length and start, into the middle of other memory."""
    kind = torch.uint8 if bits < 8 else torch.int16
    for size in [*range(1, 19), 31, 33, 65, 2047, 2049]:
        rows, row = 3, (size * bits + 7) // 8
        patterns = torch.randint(0, 2**bits, (rows, size)).to(kind)
        expected = [byte for codes in patterns.tolist() for byte in pack_row(codes, bits)]
        for offset in (0, 5):
            raw, start = guarded(rows * row, offset), GUARD + offset
            _native.pack(bits, patterns.data_ptr(), rows, size, raw.data_ptr() + start, 1)
            assert raw[start : start + rows * row].tolist() == expected
            assert untouched(raw, rows * row, offset)
            wide, even = rows * size * kind.itemsize, offset * 2
            back = guarded(wide, even)
            to = back.data_ptr() + GUARD + even
            _native.unpack(bits, raw.data_ptr() + start, rows, size, to, 1)
            found = back[GUARD + even : GUARD + even + wide].clone().view(kind)
            assert torch.equal(found.reshape(rows, size), patterns)
            assert untouched(back, wide, even)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(isa: str, threads: int) -> None:
    for bits in WIDTHS:
        kind = torch.uint8 if bits < 8 else torch.int16
        patterns = torch.randint(0, 2**bits, (517, 333)).to(kind)
        row = (333 * bits + 7) // 8
        packed = [torch.zeros(517, row, dtype=torch.uint8) for _ in range(2)]
        back = torch.zeros_like(patterns)
        for count, to in zip((1, threads), packed, strict=True):
            _native.pack(bits, patterns.data_ptr(), 517, 333, to.data_ptr(), count)
        _native.unpack(bits, packed[1].data_ptr(), 517, 333, back.data_ptr(), threads)
        assert torch.equal(*packed)
        assert torch.equal(back, patterns)


@pytest.mark.parametrize(
    "fmt",
    ["nvfp4", "e2m1:group32:fp32", "int4:group24:fp16", "uint4:group5:fp32:asym",
     "nf4:group48:bf16", "e2m1:group16:e4m3:recip", "uint4:group16:fp16:offset",
     "e4m3:group16:e8m0/floor", "int12:group16:fp32"],
)  # fmt: skip
def test_errors_of_blocks(isa: str, fmt: str) -> None:
    """In float64, in one order: a last bit decides between two scales (numerics.md, 3.5)."""
    form, generator = parse(fmt), torch.Generator().manual_seed(1)
    for shape in ((3, 96), (2, 5, 70), (1, 4100), (40,)):
        x = torch.randn(shape, generator=generator)
        rough_ones = x.clone()
        rough_ones.view(-1)[::9], rough_ones.view(-1)[1::17] = 2.0**-140, 0.0
        rough_ones.view(-1)[30], rough_ones.view(-1)[-1] = math.nan, math.inf
        for each in (x, rough_ones, x.bfloat16(), x.half(), x * 1e-42):
            given = reference.choose_qparams(x * 1.5, form)
            expected = reference.block_errors(each.float(), given, form)
            found = block_errors(each, quantizer(given, form))
            assert found is not None and same(found, expected)


def test_errors_of_blocks_that_are_not_for_the_kernel() -> None:
    for fmt, shape in (
        ("int4:tile2x8:fp32", (4, 16)),
        ("int4:channel1:fp32", (4, 16)),
        ("int4:token:fp32", (2, 2049)),
        ("nvfp4", (0, 16)),
    ):
        x = torch.randn(shape)
        given = reference.choose_qparams(x, parse(fmt))
        assert block_errors(x, quantizer(given, parse(fmt))) is None
        assert same(P.block_errors(x, given, parse(fmt)),
                    reference.block_errors(x, given, parse(fmt)))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [
    "e2m1:group16:e4m3/four_six", "e2m1:group16:(e4m3:token:fp32)/four_six",
    "e2m1:flat16:e4m3/inv/four_six:recip", "e2m1:tile2x8:e4m3/four_six",
    "e2m1:group24:e4m3/four_six", "e2m1:token:e4m3/four_six", "nvfp4_e5m3", "e2m1:group16:ue4m4",
])  # fmt: skip
def test_grids_of_2026(isa: str, fmt: str) -> None:
    """Ties between 6 and 4, zeros, NaN, subnormals, and scales that saturate."""
    generator = torch.Generator().manual_seed(2)
    quarters = torch.randint(-24, 25, (6, 48), generator=generator) / 4.0
    x = torch.randn(6, 48, generator=generator)
    zeros = torch.cat([x[:3], torch.zeros(2, 48), x[5:] * 1e-42])
    odd = zeros.clone()
    odd[0, 5], odd[1, 40], odd[4] = math.nan, -math.inf, 3e38
    steep = x * torch.logspace(-30, 30, 6)[:, None]
    for each in (quarters, x, zeros, odd, steep, x.bfloat16(), torch.zeros(2, 16), odd * 1e-6):
        assert wrong(each, fmt, None) == []
