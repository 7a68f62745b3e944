# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions without patches: floats within the tolerance, sums of codes to the bit."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, Value
from blockscale.core.pack import to_stored
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.conv_way import ConvWay
from blockscale.kernels.cpu.native import channels_last
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from tests.support.cpu_activate import EXACT
from tests.support.cpu_conv import always
from tests.support.cpu_fused_conv import asked, close
from tests.support.cpu_fused_linear import ENDS, coded, results

CONV = FUSED["conv"]
# channels, outputs, groups, kernel, stride, padding, dilation, size
SHAPES = (
    (3, 40, 1, (7, 7), (2, 2), (3, 3), (1, 1), (17, 40)),
    (5, 33, 1, (3, 2), (1, 3), (0, 2), (2, 1), (9, 8)),
    (36, 36, 36, (3, 3), (1, 1), (1, 1), (1, 1), (5, 33)),
    (20, 40, 20, (5, 3), (2, 1), (2, 3), (1, 2), (9, 8)),
    (36, 24, 12, (3,), (2,), (0,), (1,), (31,)),
    (40, 80, 2, (1, 1), (1, 1), (0, 0), (1, 1), (3, 5)),
    (6, 48, 6, (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), (4, 5, 6)),
    (4, 17, 1, (2, 1, 3), (2, 1, 1), (1, 0, 1), (2, 1, 1), (4, 5, 6)),
)
INPUTS = (
    *("", "uint8:tensor:fp32:asym", "int8:tensor:fp32", "int3:tensor:fp32:asym"),
    *("int8:token:fp32", "mxfp8"),
)
WHOLE, WEIGHT = "uint8:tensor:fp32:asym", "int8:channel0:fp32"


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, ConvWay.DIRECT)


def made(shape: tuple, fmt: str, weight_fmt: str = WEIGHT) -> tuple[Value, Value, dict]:
    """x, a weight and settings of the op."""
    channels, outputs, groups, kernel, stride, padding, dilation, size = shape
    x = torch.randn(2, *size, channels) + 0.4
    dense = torch.randn(outputs, channels // groups, *kernel)
    weight = coded(to_stored(dense, "channels_last"), weight_fmt)
    settings = {
        "bias": torch.randn(outputs), "shape": [*dense.shape], "stride": [*stride],
        "padding": [*padding], "dilation": [*dilation], "groups": groups,
    }  # fmt: skip
    return coded(x, fmt) if fmt else Value(x), weight, settings


def run(x: Value, weight: Value, settings: dict, **more: object) -> Tensor:
    with bs.use("cpu"):
        return CONV(x, weight, **settings, **more)[0]


@pytest.mark.some(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_setting(isa: str, shape: tuple) -> None:
    del isa
    for fmt, weight_fmt in itertools.product(INPUTS, (WEIGHT, "uint4:group16:fp32:asym", "nf4")):
        x, weight, settings = made(shape, fmt, weight_fmt)
        assert asked(x, weight, settings)
        with bs.use("reference"):
            floats = Value(P.dequantize(x.operand, torch.float32)) if fmt else x
            exact = CONV(floats, Value(P.dequantize(weight.operand, torch.float32)), **settings)[0]
        y = run(x, weight, settings)
        assert (y.shape, y.is_contiguous()) == (exact.shape, True)
        if fmt:
            close(x, weight, y, settings)
        else:
            assert (y - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.some(2)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] == 1], ids=str)
def test_sums_of_codes_have_the_bits_of_patches(
    isa: str, shape: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are sums of integers, exactly, times the same two steps in the same order, with one
    rounding for the last step and the bias where the tiles have it."""
    if isa not in ("avx512vnni", "amx"):
        pytest.skip("its tiles round twice")
    for fmt in (WHOLE, "int8:tensor:fp32"):
        x, weight, settings = made(shape, fmt)
        y = run(x, weight, settings)
        with monkeypatch.context() as patch:
            always(patch)
            assert torch.equal(y, run(x, weight, settings))


def test_of_integers_it_is_exact(isa: str) -> None:
    """Steps of 1, and an oracle in float64."""
    del isa
    shape = (70, 70, 70, (5, 5), (1, 1), (2, 2), (1, 1), (9, 9))
    x, weight, settings = made(shape, "int8:tensor:fp32", "int8:tensor:fp32")
    x = x._replace(scale=torch.ones_like(x.scale))
    weight = weight._replace(scale=torch.ones_like(weight.scale))
    dense = weight.data.double().reshape(70, 5, 5, 1).movedim(-1, 1)
    first = x.data.double().movedim(-1, 1)
    expected = torch.nn.functional.conv2d(first, dense, padding=2, groups=70).movedim(1, -1)
    y = run(x, weight, settings | {"bias": torch.zeros(70)})
    assert torch.equal(y.double(), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", ENDS)
def test_codes_of_results(isa: str, fmt: str) -> None:
    del isa
    x, weight, settings = made(SHAPES[2], WHOLE)
    for activation in ("", *EXACT):
        y = run(x, weight, settings, activation=activation)
        for by in results(y, fmt):
            found = run(x, weight, settings, activation=activation, y=by)
            assert torch.equal(found, P.quantize(y, by)), (activation, by)
    with bs.use("cpu"):
        chosen = CONV(x, weight, y=Quantizer(None, None, None, fmt), **settings)
    expected = P.choose_quantize(run(x, weight, settings), fmt, None)
    assert all(map(torch.equal, chosen, expected))


def test_other_dtypes() -> None:
    for shape in SHAPES[:4:2]:
        x, weight, settings = made(shape, WHOLE)
        for dtype in (torch.bfloat16, torch.float16):
            y = run(x, weight, settings, dtype=dtype, activation="relu")
            assert torch.equal(y, run(x, weight, settings).to(dtype).relu())


@pytest.mark.parametrize("zero", [0, 255, -5, 256, 2**22, 2**24])
def test_zero_points_at_the_edge(zero: int) -> None:
    """Beyond the edges of x are zeros, also where no code is one."""
    parts = QParams(torch.full((1,) * 4, 0.01), None, torch.full((1,) * 4, zero, dtype=torch.int32))
    _, weight, settings = made(SHAPES[2], WHOLE)
    x = coded(torch.randn(2, 5, 33, 36), WHOLE, parts)
    close(x, weight, run(x, weight, settings), settings)


@pytest.mark.parametrize("scale", [2.0**100, 2.0**-120, float("nan")])
def test_scales_far_from_one(scale: float) -> None:
    """torch's own convolution of the values where sums times steps could leave float32's range."""
    for of_x in (True, False):
        x, weight, settings = made(SHAPES[2], "int8:tensor:fp32")
        if of_x:
            x = x._replace(scale=torch.full_like(x.scale, scale))
        else:
            weight = weight._replace(scale=torch.full_like(weight.scale, scale))
        with bs.use("reference"):
            expected = CONV(x, weight, **settings)[0]
        same(run(x, weight, settings), expected)


def same(y: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the largest, NaN where there is one."""
    far = (
        1e-5 * expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 0
    )
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=far, equal_nan=True)


def test_a_weight_that_is_not_finite() -> None:
    """Times zeros beyond the edges it would be NaN where torch reads nothing."""
    x, weight, settings = made(SHAPES[2], "int8:tensor:fp32", "int8:channel0:fp32")
    odd = weight.scale.clone()
    odd[3] = float("inf")
    weight = weight._replace(scale=odd)
    with bs.use("reference"):
        expected = CONV(x, weight, **settings)[0]
    same(run(x, weight, settings), expected)


def test_on_several_threads() -> None:
    for shape in SHAPES:
        x, weight, settings = made(shape, WHOLE)
        y = run(x, weight, settings)
        threads = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            assert torch.equal(run(x, weight, settings), y)
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bfloat16, torch.float32])
def test_channels_last(isa: str, dtype: torch.dtype) -> None:
    del isa
    for shape in ((2, 3, 5, 7), (1, 64, 8, 8), (2, 67, 33), (1, 130, 16, 3), (3, 16, 1), (2, 1, 9)):
        x = torch.randint(0, 100, shape).to(dtype)
        expected = x.movedim(1, -1).contiguous()
        for given in (x, expected.movedim(-1, 1), x.expand(shape)):
            found = channels_last(given)
            assert torch.equal(found, expected)
            assert found.is_contiguous()
    assert channels_last(torch.empty(0, 3, 4)).shape == (0, 4, 3)
