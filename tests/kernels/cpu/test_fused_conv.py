# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of codes, channels last: floats within the tolerance, codes those of the floats."""

import itertools

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer, Value
from blockscale.core.pack import to_stored
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import conv_way
from blockscale.ops import primitives as P
from tests.support.cpu_activate import EXACT
from tests.support.cpu_conv import always
from tests.support.cpu_fused_conv import CONV, asked, close
from tests.support.cpu_fused_linear import ENDS, coded, results

# channels, outputs, kernel, stride, padding, dilation, size
SHAPES = (
    (16, 24, (3, 3), (1, 1), (1, 1), (1, 1), (9, 8)),
    (32, 17, (3, 1), (2, 2), (0, 1), (1, 1), (11, 8)),
    (48, 33, (5, 5), (1, 3), (2, 4), (1, 2), (10, 9)),
    (16, 32, (3,), (2,), (3,), (2,), (15,)),
    (64, 40, (1,), (1,), (0,), (1,), (6,)),
    (16, 9, (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), (4, 5, 6)),
    (7, 5, (2,), (3,), (1,), (1,), (20,)),
)
INPUTS = (
    *(
        "uint8:tensor:fp32:asym",
        "int8:tensor:fp32:asym",
        "int8:tensor:fp32",
        "uint8:token:fp32:asym",
    ),
    *(
        "int8:group16:e8m0/floor",
        "uint4:tensor:fp32:asym",
        "int3:token:fp32",
        "uint8:group8:fp32:asym",
    ),
)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches, however few outputs and channels there are, and nothing without them."""
    always(monkeypatch)


def made(shape: tuple, fmt: str, weight_fmt: str, batch: int = 2) -> tuple[Value, Value, dict]:
    """x, a weight and settings of the op."""
    channels, outputs, kernel, stride, padding, dilation, size = shape
    x = coded(torch.randn(batch, *size, channels) + 0.4, fmt)
    dense = torch.randn(outputs, channels, *kernel)
    weight = coded(to_stored(dense, "channels_last"), weight_fmt)
    settings = {
        "bias": torch.randn(outputs), "shape": [*dense.shape], "stride": [*stride],
        "padding": [*padding], "dilation": [*dilation], "groups": 1,
    }  # fmt: skip
    return x, weight, settings


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_setting(isa: str, shape: tuple) -> None:
    del isa
    for fmt, weight_fmt in itertools.product(
        INPUTS, ("int8:channel0:fp32", "uint4:group16:fp32:asym")
    ):
        x, weight, settings = made(shape, fmt, weight_fmt)
        block = {"token": shape[0], "group16": 16, "group8": 8}.get(fmt.split(":")[1], shape[0])
        assert asked(x, weight, settings) == (shape[0] % min(block, shape[0]) == 0)
        with bs.use("cpu"):
            close(x, weight, CONV(x, weight, **settings)[0], settings)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", ENDS)
def test_codes_of_results(isa: str, fmt: str) -> None:
    del isa
    x, weight, settings = made(SHAPES[0], "uint8:tensor:fp32:asym", "int8:channel0:fp32")
    for activation in ("", *EXACT, "gelu", "silu"):
        with bs.use("cpu"):
            y = CONV(x, weight, activation=activation, **settings)[0]
            for by in results(y, fmt):
                found = CONV(x, weight, activation=activation, y=by, **settings)
                assert torch.equal(found[0], P.quantize(y, by)), (activation, by)
            chosen = CONV(
                x, weight, activation=activation, y=Quantizer(None, None, None, fmt), **settings
            )
            assert all(map(torch.equal, chosen, P.choose_quantize(y, fmt, None)))


@pytest.mark.parametrize("zero", [0, 255, -5, 256, 2**22])
def test_zero_points_at_the_edge(zero: int) -> None:
    """Beyond the edges of x are zeros, also where no code is one."""
    fmt = "uint8:tensor:fp32:asym"
    _, weight, settings = made(SHAPES[0], fmt, "int8:channel0:fp32")
    parts = QParams(torch.full((1,) * 4, 0.01), None, torch.full((1,) * 4, zero, dtype=torch.int32))
    x = coded(torch.randn(2, 9, 8, 16), fmt, parts)
    with bs.use("cpu"):
        close(x, weight, CONV(x, weight, **settings)[0], settings)


def test_other_dtypes() -> None:
    x, weight, settings = made(SHAPES[0], "uint8:tensor:fp32:asym", "int8:channel0:fp32")
    for dtype in (torch.bfloat16, torch.float16):
        with bs.use("cpu"):
            whole = CONV(x, weight, **settings)[0]
            y = CONV(x, weight, dtype=dtype, activation="relu", **settings)[0]
        assert torch.equal(y, whole.to(dtype).relu())


def test_what_is_composed() -> None:
    """Groups, transposed ones, floats, blocks that do not fit the pixels, no places."""
    settings: dict
    fmt, weight_fmt = "uint8:tensor:fp32:asym", "int8:channel0:fp32"
    x, weight, settings = made(SHAPES[0], fmt, weight_fmt)
    assert asked(x, weight, settings)
    with bs.use("reference"):
        floats = Value(P.dequantize(x.operand, torch.float32))
    assert not asked(floats, weight, settings)
    grouped = coded(torch.randn(24, 9 * 4), weight_fmt)
    split = settings | {"shape": [24, 4, 3, 3], "groups": 4}
    assert not asked(x, grouped, split)
    with bs.use("cpu"):
        close(x, grouped, CONV(x, grouped, **split)[0], split)
    odd = coded(torch.randn(2, 9, 8, 16), "int8:group24:fp32")
    assert asked(odd, weight, settings)  # a whole pixel
    odd = coded(torch.randn(2, 9, 8, 16), "int8:group12:fp32")
    assert not asked(odd, weight, settings)
    none = coded(torch.randn(0, 9, 8, 16), fmt, QParams(x.scale, None, x.zero_point))
    assert not asked(none, weight, settings)
    with bs.use("cpu"):
        assert CONV(none, weight, **settings)[0].shape == (0, 9, 8, 24)


def test_few_outputs_and_channels_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, settings = made(SHAPES[0], "uint8:tensor:fp32:asym", "int8:channel0:fp32")
    monkeypatch.setattr(conv_way, "CHANNELS", 17)
    assert not asked(x, weight, settings)
    monkeypatch.setattr(conv_way, "CHANNELS", 16)
    assert asked(x, weight, settings)
    monkeypatch.setattr(conv_way, "OUTPUTS", 25)
    assert not asked(x, weight, settings)


def test_bad_input_is_an_error() -> None:
    x, weight, settings = made(SHAPES[0], "uint8:tensor:fp32:asym", "int8:channel0:fp32")
    for bad, match in (
        (x._replace(scale=x.scale.repeat(2, 1, 1, 1)), "expected torch.float32"),
        (x._replace(data=x.data.to(torch.int8)), "packed as"),
    ):
        with pytest.raises(ValueError, match=match), bs.use("cpu"):
            CONV(bad, weight, **settings)
    for shape, match in (
        ([24, 16, 3, 1], "rows of 48, found 144"),
        ([23, 16, 3, 3], "has 23 rows"),
    ):
        with pytest.raises(ValueError, match=match), bs.use("cpu"):
            CONV(
                x,
                weight,
                **(settings | {"shape": shape, "padding": [1, shape[-1] // 2], "bias": None}),
            )
