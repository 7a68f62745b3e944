# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of planes: lines of every length and step, sums of codes to the bit."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.pack import to_stored
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import conv as module
from blockscale.kernels.cpu import load
from blockscale.kernels.cpu.conv_way import PLANES_ISAS, ConvWay
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.op import OPS
from tests.support.cpu_conv import always

# channels, outputs, groups, kernel, stride, padding, dilation, size: lines of all lengths
SHAPES = (
    (3, 37, 1, (7, 7), (2, 2), (3, 3), (1, 1), (19, 70)),
    (5, 6, 1, (3, 2), (1, 3), (0, 2), (2, 1), (9, 100)),
    (64, 35, 1, (1, 1), (1, 1), (0, 0), (1, 1), (9, 15)),
    (33, 3, 1, (3, 3), (1, 1), (1, 1), (1, 1), (11, 56)),
    (36, 36, 36, (3, 3), (1, 1), (1, 1), (1, 1), (19, 33)),
    (20, 40, 20, (5, 3), (2, 1), (2, 3), (1, 2), (9, 8)),
    (30, 30, 30, (5, 5), (2, 2), (2, 2), (1, 1), (28, 28)),
    (7, 7, 7, (2, 9), (1, 3), (0, 4), (1, 1), (5, 50)),
    (9, 18, 9, (3, 4), (1, 1), (1, 20), (1, 1), (4, 17)),
    (36, 24, 12, (3,), (2,), (0,), (1,), (131,)),
    (12, 20, 4, (2, 2), (1, 1), (0, 1), (1, 1), (5, 6)),
    (6, 4, 1, (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), (4, 5, 6)),
    (2, 1, 1, (3, 3), (1, 1), (4, 4), (1, 1), (1, 1)),
    (4, 2, 1, (1, 1), (3, 3), (0, 0), (1, 1), (8, 8)),
)
WEIGHT = "int8:channel0:fp32"
WITH_CODES = pytest.mark.skipif(
    load().isa() not in PLANES_ISAS,  # there is a library, or this file is left out
    reason="this processor multiplies no codes in planes: it has no VNNI",
)
INPUTS = ("", "int8:tensor:fp32", "uint8:tensor:fp32:asym", "int3:tensor:fp32:asym", "uint8")


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, ConvWay.PLANES)


@pytest.fixture(autouse=True)
def _no_other_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where another way gives the result, but in tests of those."""
    if "another" not in request.node.name:

        def refuse(*_: object) -> None:
            raise AssertionError("not by planes")

        for name in ("_by_torch", "_as_integers", "directly"):
            monkeypatch.setattr(module, name, refuse)


def made(shape: tuple, weight_fmt: str = WEIGHT) -> tuple[Tensor, Operand, tuple]:
    """x, a weight and the arguments behind them."""
    channels, outputs, groups, kernel, stride, padding, dilation, size = shape
    dense = torch.randn(outputs, channels // groups, *kernel)
    stored = to_stored(dense, "channels_last")
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(stored, weight_fmt, None)
    form = parse(weight_fmt)
    weight = bs.core.operand.operand(packed, P.from_list(parts, form), weight_fmt, stored.shape[-1])
    settings = ([*dense.shape], [*stride], [*padding], [*dilation], groups)
    return torch.randn(2, channels, *size) + 0.4, weight, (torch.randn(outputs), *settings)


def check(x: Tensor, weight: Operand, rest: tuple, by: Quantizer) -> Tensor:
    """The result, within the tolerance that the same op of magnitudes says."""
    with bs.use("reference"):
        expected = conv(x, weight, *rest, by)
        last = x.float().movedim(1, -1)
        values = P.fake_quantize(last, by).movedim(-1, 1) if by.fmt else x.float()
        dense = P.dequantize(weight, torch.float32).abs()
        bias, shape, stride, padding, dilation, groups = rest
        dense = bs.core.pack.from_stored(dense, "channels_last", shape)
        run = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        size = run(values.abs(), dense, bias.abs(), stride, padding, dilation, groups)
    with bs.use("cpu"):
        y: Tensor = conv(x, weight, *rest, by)
    assert (y.shape, y.dtype, y.is_contiguous()) == (expected.shape, x.dtype, True)
    rounding = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[x.dtype]
    bound = (2 * OPS["conv"].ulps * 2.0**-24 + rounding) * size
    assert ((y.double() - expected.double()).abs() <= bound).all()
    return y


def chosen(fmt: str) -> Quantizer:
    return Quantizer(None, None, None, parse(fmt).spelling) if fmt else UNQUANTIZED


@pytest.mark.some(8)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_setting(isa: str, shape: tuple) -> None:
    weights = (WEIGHT, "int4:tensor:fp32", "uint4:group16:fp32:asym", "nf4")
    for i, (fmt, weight_fmt) in enumerate(itertools.product(INPUTS, weights)):
        packs = isa in ("avx512vnni", "amx") and weight_fmt in weights[:2]
        if fmt and shape[0] // shape[2] > 31 and not packs:
            continue  # these are left to patches
        x, weight, rest = made(shape, weight_fmt)
        dtype = (torch.float32, torch.bfloat16, torch.float16)[i % 3]
        check(x.to(dtype), weight, rest, chosen(fmt))


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] == 1], ids=str)
def test_sums_of_codes_have_the_bits_of_another_way(
    isa: str, shape: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact sums of integers times the same two steps in the same order, the last with the bias."""
    if isa not in ("avx512vnni", "amx"):
        pytest.skip("its tiles round twice")
    for fmt in ("uint8:tensor:fp32:asym", "int8:tensor:fp32"):
        x, weight, rest = made(shape)
        with bs.use("cpu"):
            y = conv(x, weight, *rest, chosen(fmt))
            with monkeypatch.context() as patch:
                always(patch)
                assert torch.equal(y, conv(x, weight, *rest, chosen(fmt)))


@pytest.mark.parametrize("groups", [1, 10, 70])
def test_of_integers_it_is_exact(isa: str, groups: int) -> None:
    """Steps of 1, and an oracle in float64; a line of 65 is one pixel more than four vectors."""
    if groups == 1 and isa not in ("avx512vnni", "amx"):
        pytest.skip("70 channels are left to patches")
    shape = (70, 70, groups, (3, 3), (1, 2), (1, 1), (1, 1), (5, 130))
    _, weight, rest = made(shape, "int8:tensor:fp32")
    weight = weight._replace(scale=torch.ones_like(weight.scale))
    x = torch.randint(-127, 128, (2, 70, 5, 130)).float()
    by = Quantizer(torch.ones(1, 1, 1, 1), None, None, "int8:tensor:fp32")
    dense = weight.codes.double().reshape(70, 3, 3, 70 // groups).movedim(-1, 1)
    expected = F.conv2d(x.double(), dense, None, (1, 2), 1, 1, groups)
    with bs.use("cpu"):
        y = conv(x, weight, None, *rest[1:], by)
    assert torch.equal(y.double(), expected)


@WITH_CODES
def test_the_longest_sums() -> None:
    """255 * -128 as often as int32 can hold the sum of products of such a size."""
    y, exact = longest(65_793)
    assert (y - exact).abs().max() <= 2.0**7  # an ulp of float32


def test_longer_sums_go_another_way() -> None:
    y, exact = longest(65_794)
    assert (y / exact - 1).abs().max() <= 1e-4  # torch adds in float32


def longest(channels: int) -> tuple[Tensor, float]:
    """Sums of so many products of the largest codes, and what they are."""
    x = torch.full((1, channels, 1, 2), 255.0)
    packed = torch.full((2, channels), -128, dtype=torch.int8)
    weight = bs.core.operand.operand(
        packed, QParams(torch.ones(1, 1), None, None), "int8:tensor:fp32:full", channels
    )
    by = Quantizer(torch.ones(1, 1, 1, 1), None, None, "uint8:tensor:fp32")
    rest = ([2, channels, 1, 1], [1, 1], [0, 0], [1, 1], 1)
    with bs.use("cpu"):
        y = conv(x, weight, None, *rest, by)
    return y.double(), -255.0 * 128 * channels


@pytest.mark.some(2)
@pytest.mark.parametrize("zero", [0, 1, 254, 255])
def test_zero_points_at_the_edge(isa: str, zero: int) -> None:
    del isa
    by = Quantizer(
        torch.full((1,) * 4, 0.01), torch.full((1,) * 4, zero, dtype=torch.int32), None,
        "uint8:tensor:fp32:asym",
    )  # fmt: skip
    for shape in SHAPES[:2] + SHAPES[4:5]:
        check(*made(shape), by)


@pytest.mark.parametrize("zero", [-5, 256, 2**22])
def test_zero_points_that_are_no_codes_go_another_way(zero: int) -> None:
    by = Quantizer(
        torch.full((1,) * 4, 0.01), torch.full((1,) * 4, zero, dtype=torch.int32), None,
        "uint8:tensor:fp32:asym",
    )  # fmt: skip
    for shape in SHAPES[:2] + SHAPES[4:5]:
        check(*made(shape), by)


@pytest.mark.parametrize("scale", [2.0**100, 2.0**-120, float("nan")])
def test_scales_far_from_one_go_another_way(scale: float) -> None:
    for shape in (SHAPES[0], SHAPES[4]):
        x, weight, rest = made(shape)
        by = Quantizer(torch.full((1,) * 4, scale), None, None, "int8:tensor:fp32")
        far = weight._replace(scale=torch.full_like(weight.scale, scale))
        for each, how in ((weight, by), (far, chosen("int8")), (far, UNQUANTIZED)):
            with bs.use("reference"):
                expected = conv(x, each, *rest, how)
            with bs.use("cpu"):
                y = conv(x, each, *rest, how)
            size = expected[expected.isfinite()].abs()
            atol = 1e-5 * size.max().item() if size.numel() else 0.0
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=atol, equal_nan=True)


def test_numbers_that_are_not_finite(isa: str) -> None:
    """Given scales have codes for them; a chosen scale is none, and another way says so."""
    del isa
    x, weight, rest = made(SHAPES[4])
    x[0, 0, 0, 0], x[1, 1, 1, 1] = float("inf"), float("nan")
    check(x, weight, rest, Quantizer(torch.full((1,) * 4, 0.1), None, None, "int8:tensor:fp32"))


@WITH_CODES
def test_x_that_is_not_in_order() -> None:
    x, weight, rest = made(SHAPES[3])
    wide = torch.randn(2, 33, 22, 112)
    wide[:, :, ::2, ::2] = x
    with bs.use("cpu"):
        for fmt in ("", "int8"):
            y = conv(wide[:, :, ::2, ::2], weight, *rest, chosen(fmt))
            assert torch.equal(y, conv(x, weight, *rest, chosen(fmt)))


def test_the_same_weight_in_two_shapes_which_may_go_another_way() -> None:
    """[8, 36] as four channels under 3 x 3 cells, 36 under one, and one under 6 x 6."""
    x, weight, rest = made((4, 8, 1, (3, 3), (1, 1), (1, 1), (1, 1), (9, 8)))
    check(x, weight, rest, chosen("int8"))
    bias, settings = rest[0], ([1, 1], [0, 0], [1, 1], 1)
    check(torch.randn(2, 36, 9, 8), weight, (bias, [8, 36, 1, 1], *settings), chosen("int8"))
    check(torch.randn(2, 1, 9, 8), weight, (bias, [8, 1, 6, 6], *settings), chosen("int8"))
    check(x, weight, rest, chosen("int8"))


def test_a_weight_that_changes_in_place() -> None:
    x, weight, rest = made(SHAPES[0])
    check(x, weight, rest, chosen("int8"))
    weight.codes.neg_()
    check(x, weight, rest, chosen("int8"))


def test_on_several_threads(isa: str) -> None:
    del isa
    threads = torch.get_num_threads()
    for shape in SHAPES[:8]:
        x, weight, rest = made(shape)
        by = UNQUANTIZED if shape[0] // shape[2] > 31 else chosen("int8")
        with bs.use("cpu"):
            y = conv(x, weight, *rest, by)
            torch.set_num_threads(3)
            try:
                assert torch.equal(conv(x, weight, *rest, by), y)
            finally:
                torch.set_num_threads(threads)
