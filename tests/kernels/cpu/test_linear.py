# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers keep to the op's tolerance: formats, sizes, dtypes, instruction sets, threads."""

import itertools

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.cpu_linear import NOTHING, check, packed, run, stored

WEIGHTS = (
    *CATALOG.values(),
    *(
        "int4:group32:fp32",
        "uint4:group32:e8m0/floor:asym",
        "int3:group16:fp16",
        "int7:group8:bf16",
    ),
    *("int8:tile16x32:fp32", "int5:group48:fp32:full", "int8:channel1:fp32", "e3m4:group32:fp32"),
    *("uint8:group64:fp32", "int8:group16:(uint8:tensor:fp32)", "e2m1:group16:(e4m3:token:fp32)"),
    *("uint8:group32:fp32:asym", "log4:group32:e8m0/ceil", "e4m3:group16:e5m2", "e7m0:token:fp32"),
    *("int8:block*x32:fp32", "int4:block*x8:fp16:asym"),
    *("nf4:group64:fp32", "fp4:group32:e8m0/floor", "iq4_nl:group32:fp16", "log8f3:channel0:fp32"),
    *("book(-1,-0.5,0,0.5,1):group16:fp32", "log8f3:group16:e4m3", "book(1e30,-2,3):token:fp32"),
    *("uint4:group32:fp16:offset", "uint4:group8:fp32:offset", "int8:group64:fp32:offset"),
    *("nf4:group64:fp32:offset", "e4m3:group32:fp32:offset", "e2m1:group32:e8m0/ceil:offset"),
    *("log8f3:group32:fp16:offset", "uint6:token:fp32:offset", "int4:group16:e4m3:offset"),
    *("uint3:token:fp32:asym", "int8:group20:fp32", "e3m0:group64:pow2/even", "uint8:group16:bf16"),
    *("uint4:group32:fp16:asym(fp16)", "uint8:token:fp32:asym(fp32)"),
    "int4:group8:fp32:asym(bf16)",
)
INPUTS = (
    *(
        "",
        "int8:token:fp32",
        "int8:tensor:fp32",
        "int8:group32:e8m0/floor",
        "uint8:token:fp32:asym",
    ),
    *("int8:group64:bf16:full", "int4:group32:fp32", "ternary:token:fp32", "e2m1:group16:e4m3"),
    *("uint8:token:fp32:asym(fp32)", "uint8:tensor:fp32:asym(fp16)"),
    *("int8:channel-1:fp32", "int8:group16:e4m3", "int8:token:fp16:recip", "int8:group24:fp32"),
)
SIZES = ((1, 100, 7), (2, 64, 1), (5, 33, 65), (13, 17, 40), (33, 1, 3), (17, 160, 63))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", WEIGHTS)
def test_every_weight_format_with_every_kind_of_input(isa: str, fmt: str) -> None:
    del isa
    for i, input_fmt in enumerate(INPUTS):
        m, k, n = SIZES[(i + len(fmt)) % len(SIZES)]
        dtype = DTYPES[i % 3]
        weight = stored(torch.randn(n, k), fmt)
        bias = torch.randn(n).to(dtype) if i % 2 else None
        check(torch.randn(m, k).to(dtype), weight, fmt, input_fmt, bias=bias)


@pytest.mark.some(4)
@pytest.mark.parametrize("k", [1, 7, 16, 17, 33, 63, 64, 65, 100, 129, 520])
def test_ragged_sizes(isa: str, k: int) -> None:
    del isa
    pairs = (
        *(("int8:channel0:fp32", "int8:token:fp32"), ("int4:group32:fp32", "int8:token:fp32")),
        *(("int8:group32:e8m0/floor", "int8:group32:e8m0/floor"), ("e2m1:group16:e4m3", "")),
        *(("uint4:group128:fp32:asym", "int8:group64:fp32"), ("e4m3:group32:e8m0/floor", "")),
    )
    for n, (fmt, input_fmt) in itertools.product((1, 7, 31, 33, 65), pairs):
        weight = stored(torch.randn(n, k), fmt)
        for m in (1, 2, 3, 5, 13, 25) if n == 33 else (1, 7):
            check(torch.randn(m, k), weight, fmt, input_fmt)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "fmt", ["int8:channel0:fp32", "e2m1:group32:e8m0/floor", "e3m2:token:fp32"]
)
def test_many_rows_and_outputs(isa: str, fmt: str) -> None:
    """More than one piece of k, panel of outputs and batch of rows; one thread as two."""
    del isa
    weight = stored(torch.randn(150, 1100), fmt)
    x = torch.randn(600, 1100)
    for input_fmt in ("", "int8:token:fp32", "int8:tensor:fp32", "int8:group16:e8m0/ceil"):
        check(x, weight, fmt, input_fmt)
        for m in (1, 40):
            one = run(x[:m], weight, fmt, input_fmt)
            torch.set_num_threads(2)
            assert torch.equal(run(x[:m], weight, fmt, input_fmt), one)
            torch.set_num_threads(1)


@pytest.mark.parametrize("shape", [(40,), (2, 3, 40), (2, 1, 2, 40), (0, 40), (2, 0, 40)], ids=str)
def test_shapes_of_x(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for fmt, input_fmt in itertools.product(("mxint8", "int8_channel"), ("", *INPUTS[1:4])):
        fmt = CATALOG[fmt]
        weight = stored(torch.randn(6, 40), fmt)
        check(x, weight, fmt, input_fmt, bias=torch.randn(6))
        strided = torch.randn((*shape, 2))[..., 0]
        check(strided, weight, fmt, input_fmt)


def test_no_inputs_and_no_outputs() -> None:
    fmt = "int8:channel0:fp32"
    for m, k, n in ((3, 0, 5), (3, 16, 0), (0, 0, 0)):
        weight, bias = stored(torch.randn(n, k), fmt), torch.randn(n)
        for input_fmt in ("", "int8:token:fp32", "int8:tensor:fp32"):
            y = run(torch.randn(m, k), weight, fmt, input_fmt, bias=bias)
            assert torch.equal(y, bias.expand(m, n))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_given_scales(isa: str, dtype: torch.dtype) -> None:
    del isa
    x, fmt = torch.randn(2, 5, 48).to(dtype), "int8:group16:fp32"
    weight = stored(torch.randn(9, 48), fmt)
    for input_fmt in ("int8:tensor:fp32", "uint8:tensor:fp32:asym", "int8:channel-1:fp32",
                      "int8:token:fp32", "int8:tensor:e8m0/floor"):  # fmt: skip
        scale, outer, zero = P.from_list(
            P.choose_qparams.reference(x * 0.7, input_fmt), parse(input_fmt)
        )[:3]
        check(x, weight, fmt, input_fmt, given=(scale, zero, outer))


FAR = ("int4:group32:fp32", "nf4:group32:fp32", "uint4:group32:fp32:offset", "log8f3:token:fp32")


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", [*CATALOG.values(), *FAR])
def test_numbers_far_from_one(fmt: str) -> None:
    """Infinite and NaN x and weights, zeros, and steps at both ends of float32."""
    base = torch.randn(6, 64)
    for weight_size in (1.0, 1e-36, 1e36, 0.0):
        w = base * weight_size
        w[2, 5], w[4], w[5, 40] = 0.0, 0.0, torch.nan if weight_size == 1 else 0.0
        weight = stored(w, fmt)
        for x_size in (1.0, 1e-30, 1e30, 0.0):
            x = torch.randn(3, 64) * x_size
            x[0] *= 1e-3
            for input_fmt in ("", "int8:token:fp32", "int8:group32:e8m0/floor"):
                check(x, weight, fmt, input_fmt)
    weight = stored(base, fmt)
    for odd in (torch.inf, -torch.inf, torch.nan):
        x = torch.randn(3, 64)
        x[1, 7] = odd
        for input_fmt in ("", "int8:token:fp32", "int8:tensor:fp32", "int8:group32:e8m0/floor"):
            with bs.use("reference"):
                expected = linear(
                    x,
                    packed(weight, fmt, x.shape[-1]),
                    None,
                    Quantizer(*NOTHING, input_fmt, None),
                )
            y = run(x, weight, fmt, input_fmt)
            assert torch.equal(y.isnan(), expected.isnan()), (odd, input_fmt)
            assert torch.equal(y.isinf(), expected.isinf()), (odd, input_fmt)


SIGNED = (
    *("int4:group32:fp32", "int8:channel0:fp32", "e2m1:group32:fp32", "e4m3:group32:fp32"),
    *("uint4:group32:fp32:asym", "nf4:group32:fp32", "uint4:group32:fp32:offset"),
    *("uint4:group32:fp32:asym(fp16)", "int8:token:fp32:asym(bf16)"),
    *("e2m1:group16:e4m3", "int4:group16:e4m3", "log8f3:group32:fp32:offset"),
)


@pytest.mark.parametrize("fmt", SIGNED)
def test_weights_with_steps_of_either_sign_and_0(isa: str, fmt: str) -> None:
    del isa
    codes, scale, zero, outer, more = stored(torch.randn(40, 256), fmt)
    scale = scale.clone()
    if scale.dtype is torch.uint8:
        scale[::2] |= 128
        scale[:, ::3] &= 128
    else:
        scale[::2] *= -1
        scale[:, ::3] *= 0
    for m, input_fmt in itertools.product((1, 3, 20), ("", "int8:token:fp32")):
        weight = (codes, scale, zero, outer, more)
        check(torch.randn(m, 256), weight, fmt, input_fmt)


@pytest.mark.parametrize("m", [1, 30])
def test_offsets_that_cancel(isa: str, m: int) -> None:
    """Values that are small where step times code is not; blocks of one value have tiny steps."""
    del isa
    w = torch.randn(33, 256)
    w[3], w[5, :64], w[7] = 0.0, 2.5, w[7] * 1e-6 + 1
    for fmt in ("uint4:group32:fp32:offset", "int8:group64:fp32:offset", "e4m3:token:fp32:offset"):
        codes, scale, zero, outer, more = stored(w, fmt)
        codes = codes.clone()
        codes[9:12] = 0x77
        more = [-scale * 7]  # those of code 7 are 0
        check(torch.randn(m, 256), (codes, scale, zero, outer, more), fmt)


def test_an_offset_that_changes_in_place() -> None:
    fmt, x = "uint4:group32:fp16:offset", torch.randn(3, 64)
    weight = stored(torch.randn(8, 64), fmt)
    with bs.use("cpu"):
        whole = packed(weight, fmt, 64)
        first = linear(x, whole)
        weight[4][0].add_(1)
        second = linear(x, whole)
    assert not torch.equal(first, second)
    check(x, weight, fmt)


def test_what_does_not_fit_is_an_error() -> None:
    fmt = "int8:channel0:fp32"
    codes, scale, *_ = stored(torch.randn(6, 32), fmt)
    x = torch.randn(2, 32)
    for bad in (
        (x[:, :31], codes, scale), (x, codes[:, :31], scale), (x, codes.to(torch.uint8), scale),
        (x, codes, scale[:5]), (x, codes, scale.double()), (x, codes[None], scale),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"expected|packed|codes"):
            run(bad[0], (*bad[1:], None, None), fmt)
    with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
        run(x.double(), (codes, scale, None, None), fmt)
    with pytest.raises(RuntimeError, match="expand"):
        run(x, (codes, scale, None, None), fmt, bias=torch.zeros(5))
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        run(x, (codes, scale, None, None), fmt, "int8:token:fp32:stochastic")
    with pytest.raises(ValueError, match="expected"):
        run(x, (codes, scale, None, None), fmt, "int8:tensor:fp32", given=(scale, None, None))
