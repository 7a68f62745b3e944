# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions of codes: floats within the tolerance, codes those of the floats."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels.cpu import conv_transpose as kernel
from blockscale.kernels.cpu import conv_transpose as products
from blockscale.kernels.registry import supporting
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from tests.support.fused_cases import coded, quantizer_of

CONV = FUSED["conv"]
# channels, outputs, kernel, stride, padding, output padding, dilation; size
SHAPES = (
    ((32, 24, (3, 3), (2, 2), (1, 1), (1, 0), (1, 1)), (5, 4)),
    ((32, 17, (2, 2), (2, 2), (0, 0), (), (1, 1)), (4, 6)),
    ((64, 9, (4,), (3,), (2,), (), (2,)), (11,)),
    ((16, 6, (2, 3, 1), (1, 2, 2), (0, 1, 0), (0, 1, 1), (2, 1, 1)), (3, 4, 3)),
)
INPUTS = (
    "int8:tensor:fp32",
    "uint8:tensor:fp32:asym",
    "int8:token:fp32",
    "int4:group16:e8m0/floor",
)
WEIGHTS = ("int8:channel0:fp32", "int4:group16:fp32", "uint4:group16:fp32:asym", "int8:tensor:fp32")


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few channels there are, and each image by itself."""
    monkeypatch.setattr(products, "_CHANNELS", 1)
    monkeypatch.setattr(products, "_PRODUCTS", 1)


def made(shape: tuple, fmt: str, weight_fmt: str, batch: int = 3) -> tuple[Value, Value, dict]:
    """x, a weight and settings of the op."""
    (channels, outputs, size, stride, padding, more, dilation), image = shape
    x = coded(torch.randn(batch, *image, channels) + 0.4, fmt)
    weight = coded(torch.randn(outputs, torch.Size(size).numel() * channels), weight_fmt)
    settings = {
        "bias": torch.randn(outputs), "shape": [channels, outputs, *size], "stride": [*stride],
        "padding": [*padding], "dilation": [*dilation], "groups": 1, "transposed": True,
        "output_padding": tuple(more),
    }  # fmt: skip
    return x, weight, settings


def asked(x: Value, weight: Value, settings: dict) -> bool:
    """Whether this kernel takes this call."""
    with bs.use("cpu"):  # loads the kernels
        values = (*settings.values(), "", torch.float32, UNQUANTIZED)
        found = supporting("fused_conv", "cpu", (x.fmt, weight.fmt), (x, weight, *values))
    return found is not None and found.run is kernel.fused_conv


def close(x: Value, weight: Value, y: Tensor, settings: dict) -> None:
    """Within the tolerance; what the op makes of magnitudes says how large it is."""
    with bs.use("reference"):
        values, dense = (P.dequantize(v.operand, torch.float32) for v in (x, weight))
        exact = CONV(Value(values), Value(dense), **settings)[0]
        bias = settings["bias"]
        sizes = settings | {"bias": None if bias is None else bias.abs()}
        size = CONV(Value(values.abs()), Value(dense.abs()), **sizes)[0]
    assert (y.shape, y.dtype, y.is_contiguous()) == (exact.shape, torch.float32, True)
    assert ((y - exact).abs() <= 2 * CONV.ulps * 2.0**-24 * size).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_setting(shape: tuple) -> None:
    for fmt, weight_fmt in itertools.product(INPUTS, WEIGHTS):
        x, weight, settings = made(shape, fmt, weight_fmt)
        assert asked(x, weight, settings)
        for bias in (settings["bias"], None):
            own = settings | {"bias": bias}
            with bs.use("cpu"):
                close(x, weight, CONV(x, weight, **own)[0], own)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", INPUTS)
@pytest.mark.parametrize("weight_fmt", ["int4:channel0:pow2/floor", "int4:group16:e8m0/floor"])
def test_bits_are_the_references_where_no_sum_rounds(fmt: str, weight_fmt: str) -> None:
    fmt = fmt.replace("fp32", "pow2/floor")
    for shape in SHAPES:
        x, weight, settings = made(shape, fmt, weight_fmt)
        settings["bias"] = settings["bias"].round()
        assert asked(x, weight, settings)
        for result in ("float", "static int8:tensor:fp32", "dynamic int8:token:fp32"):
            with bs.use("reference"):
                plain = CONV(x, weight, activation="relu", **settings)[0]
                by = quantizer_of(plain, result)
                expected = CONV(x, weight, activation="relu", y=by, **settings)
            with bs.use("cpu"):
                found = CONV(x, weight, activation="relu", y=by, **settings)
            assert len(found) == len(expected)
            assert all(map(torch.equal, found, expected)), (shape, result)


def test_other_dtypes() -> None:
    x, weight, settings = made(SHAPES[0], INPUTS[0], WEIGHTS[0])
    with bs.use("cpu"):
        plain = CONV(x, weight, **settings)[0]
        for dtype in (torch.bfloat16, torch.float16):
            found = CONV(x, weight, dtype=dtype, **settings)[0]
            assert torch.equal(found, plain.to(dtype))


def test_zero_points_out_of_range_are_decoded() -> None:
    x, weight, settings = made(SHAPES[1], "uint8:tensor:fp32:asym", WEIGHTS[0])
    x = x._replace(zero_point=torch.full_like(x.zero_point, 2**26))
    with bs.use("cpu"):
        found = CONV(x, weight, **settings)[0]
    close(x, weight, found, settings)


def test_which_calls_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, settings = made(SHAPES[0], INPUTS[0], WEIGHTS[0])
    assert asked(x, weight, settings)
    assert not asked(Value(torch.randn(3, 5, 4, 32)), weight, settings)
    assert not asked(x, weight, settings | {"output_padding": (2, 0)})  # an error, torch's own
    assert not asked(x, weight, settings | {"padding": [9, 9]})
    assert not asked(x, weight, settings | {"shape": [32, 24, 3, 3, 1]})
    assert not asked(x, coded(torch.randn(24, 288), "int8:group96:fp32"), settings)
    grouped = settings | {"groups": 2, "shape": [64, 12, 3, 3]}
    assert not asked(x, weight, grouped)
    monkeypatch.setattr(products, "_CHANNELS", 33)
    assert not asked(x, weight, settings)


def test_nothing_at_all() -> None:
    for batch, fmt in itertools.product((0, 1), INPUTS):
        x, weight, settings = made(SHAPES[0], fmt, WEIGHTS[0], batch)
        by = Quantizer(None, None, None, "int8:token:fp32")
        with bs.use("cpu"):
            codes, scale = CONV(x, weight, y=by, **settings)
        with bs.use("reference"):
            expected = CONV(x, weight, y=by, **settings)
        assert [codes.shape, scale.shape] == [each.shape for each in expected]
