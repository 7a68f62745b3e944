# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers keep to the op's tolerance: formats, sizes, dtypes, instruction sets, threads."""

import copy
import gc
import itertools

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value, operand, quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu import linear as module
from blockscale.kernels.cpu.linear import OPS
from blockscale.kernels.registry import supporting
from blockscale.ops import primitives as P
from blockscale.ops.embedding import embedding
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from tests.kernels.cpu.equal import decoding, differing, encoding, settings, wrong
from tests.kernels.restated import FORMATS, UNCHOSEN, awkward, runs, shapes
from tests.kernels.restated import given as given_scales
from tests.support.cpu_activate import EXACT, NEAR
from tests.support.cpu_fused_linear import ENDS, coded, results
from tests.support.cpu_linear import NOTHING, check, packed, run, stored
from tests.support.cpu_primitives import BLOCKS, ELEMENTS, rough, spelling
from tests.support.ops_embedding import EXTRA
from tests.support.same import same
from tests.support.set_aside import set_aside
from tests.support.some import crossed

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


@pytest.mark.some(32)
@pytest.mark.parametrize("fmt", WEIGHTS)
def test_every_weight_format_with_every_kind_of_input(isa: str, fmt: str) -> None:
    del isa
    for i, input_fmt in enumerate(INPUTS):
        m, k, n = SIZES[(i + len(fmt)) % len(SIZES)]
        dtype = DTYPES[i % 3]
        weight = stored(torch.randn(n, k), fmt)
        bias = torch.randn(n).to(dtype) if i % 2 else None
        check(torch.randn(m, k).to(dtype), weight, fmt, input_fmt, bias=bias)


@pytest.mark.slow
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


@pytest.mark.some(4)
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


LINEAR = FUSED["linear"]
ACTIVATIONS = ("", *EXACT, *NEAR)
WEIGHTS_of_fused_linear = (
    "int8:channel0:fp32",
    "int4:group32:fp32",
    "uint4:group16:fp16:asym",
    "uint4:group16:fp16:asym(fp16)",
    "e2m1:group16:e4m3",
)
INPUTS_of_fused_linear = (
    *("uint8:tensor:fp32:asym", "int8:tensor:fp32", "uint8:token:fp32:asym", "int4:token:fp32"),
    *(
        "int8:group32:e8m0/floor",
        "uint8:group16:fp32:asym",
        "uint3:tensor:fp32",
        "int5:group48:fp32",
    ),
    *("e4m3:token:fp32", "int8:token:fp32:offset", "int16:tensor:fp32", "int8:group16:e4m3"),
    *("uint8:token:fp32:asym(fp32)", "uint8:tensor:fp32:asym(fp16)"),
)
DTYPES_of_fused_linear = (torch.float32, torch.bfloat16, torch.float16)
ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
OTHERS = (
    *("int8:tensor:fp32:nearest_away", "e4m3:tensor:fp32", "int8:token:fp32", "int16:tensor:fp32"),
    *("int8:group16:e8m0/floor", "int8:tensor:fp32:offset", "binary:tensor:fp32"),
    *("uint8:tensor:fp32:asym(fp32)", "uint8:token:bf16:asym(bf16)"),
)


def run_of_fused_linear(x: Value, weight: Value, **more) -> list[Tensor]:
    with bs.use("cpu"):
        assert supporting("fused_linear", "cpu", (x.fmt, weight.fmt), _arguments(x, weight, more))
        return LINEAR(x, weight, **more)


def _arguments(x: Value, weight: Value, more: dict) -> tuple:
    settings = (more.get("activation", ""), more.get("dtype", torch.float32))
    return (x, weight, None, *settings, more.get("y", UNQUANTIZED))


def close(x: Value, weight: Value, y: Tensor, bias: Tensor | None) -> None:
    """Within the tolerance, from the exact product of the values of both."""
    with bs.use("reference"):
        values = P.dequantize(x.operand, torch.float32).double()
        dense = P.dequantize(weight.operand, torch.float32).double()
    offset = torch.zeros(()).double() if bias is None else bias.double()
    exact, size = values @ dense.T + offset, values.abs() @ dense.abs().T + offset.abs()
    bound = LINEAR.ulps * 2.0**-24 * size + ROUNDS[y.dtype] * exact.abs() * 1.01 + 1e-30
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("fmt", INPUTS_of_fused_linear)
@pytest.mark.parametrize("weight_fmt", WEIGHTS_of_fused_linear)
def test_codes_times_codes(isa: str, weight_fmt: str, fmt: str) -> None:
    del isa
    for i, (m, k, n) in enumerate(
        ((1, 96, 33), (7, 50, 7), (14, 64, 64), (2, 1, 40), (40, 100, 35))
    ):
        dtype = DTYPES_of_fused_linear[i % 3]
        x, weight = coded(torch.randn(m, k) + 0.5, fmt), coded(torch.randn(n, k), weight_fmt)
        bias = torch.randn(n).to(dtype) if i % 2 else None
        close(x, weight, run_of_fused_linear(x, weight, bias=bias, dtype=dtype)[0], bias)


def test_floats_times_codes(isa: str) -> None:
    """Any float dtype in, any out."""
    del isa
    weight = coded(torch.randn(20, 64), "int4:group32:fp32")
    for given, dtype in itertools.product(DTYPES_of_fused_linear, DTYPES_of_fused_linear):
        x = torch.randn(3, 5, 64).to(given)
        y = run_of_fused_linear(Value(x), weight, dtype=dtype, activation="relu")[0]
        assert (y.dtype, y.shape) == (dtype, (3, 5, 20))
        with bs.use("reference"):
            expected = LINEAR(Value(x), weight, dtype=dtype, activation="relu")[0]
        torch.testing.assert_close(y, expected, rtol=4 * ROUNDS[dtype], atol=1e-4)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", (*ENDS, *OTHERS))
def test_codes_of_results(isa: str, fmt: str) -> None:
    """Bit for bit what quantize makes of the floats that the same kernel gives."""
    del isa
    shapes = ((1, 40, 33), (13, 64, 70), (2, 20, 5), (30, 16, 32))
    for (m, k, n), activation in zip(itertools.cycle(shapes), ACTIVATIONS, strict=False):
        x = coded(torch.randn(2, m, k), "uint8:tensor:fp32:asym")
        weight, bias = coded(torch.randn(n, k), "int8:channel0:fp32"), torch.randn(n)
        more = {"bias": bias, "activation": activation}
        for dtype in (
            DTYPES_of_fused_linear if activation in ("", "silu") else DTYPES_of_fused_linear[:1]
        ):
            y = run_of_fused_linear(x, weight, dtype=dtype, **more)[0]
            for by in results(y, fmt):
                found = run_of_fused_linear(x, weight, dtype=dtype, y=by, **more)
                assert len(found) == 1
                assert torch.equal(found[0], P.quantize(y, by)), (activation, dtype, by)
            chosen = run_of_fused_linear(
                x, weight, dtype=dtype, y=Quantizer(None, None, None, fmt), **more
            )
            for a, b in zip(chosen, P.choose_quantize(y, fmt, None), strict=True):
                assert torch.equal(a, b)


def test_which_results_end_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass with the primitives alone: ask whether they were called."""
    called = []
    plain = module.quantize
    monkeypatch.setattr(module, "quantize", lambda *a: called.append(a) or plain(*a))
    x = coded(torch.randn(4, 32), "uint8:tensor:fp32:asym")
    weight = coded(torch.randn(9, 32), "int8:channel0:fp32")
    for fmt, expected in ((f, f in OTHERS) for f in (*ENDS, *OTHERS)):
        run_of_fused_linear(x, weight, y=results(torch.randn(4, 9), fmt)[0], activation="silu")
        assert bool(called) == expected, fmt
        called.clear()


@pytest.mark.parametrize("activation", EXACT)
def test_exact_activations(isa: str, activation: str) -> None:
    """Codes and floats are those of torch's function of the kernel's sums."""
    del isa
    fmt = "uint8:tensor:fp32:asym"
    x, weight = (
        coded(torch.randn(50, 64) * 4, fmt),
        coded(torch.randn(70, 64), "int8:channel0:fp32"),
    )
    sums = run_of_fused_linear(x, weight)[0]
    expected = EXACT[activation](sums)
    assert torch.equal(run_of_fused_linear(x, weight, activation=activation)[0], expected)
    by = results(expected, fmt)[0]
    assert torch.equal(
        run_of_fused_linear(x, weight, activation=activation, y=by)[0], P.quantize(expected, by)
    )


@pytest.mark.parametrize("activation", NEAR)
@pytest.mark.parametrize("fmt", ["uint8:tensor:fp32:asym", "int8:tensor:fp32"])
def test_other_activations_move_a_code_only_at_its_edge(
    isa: str, activation: str, fmt: str
) -> None:
    """A code lies between those of the exact value less, and plus, the error that is stated.

    Quantizing is monotonic, so that proves it: where both are one code there is no other.
    """
    del isa
    function, units, of_x = NEAR[activation]
    x, weight = coded(torch.randn(90, 64), fmt), coded(torch.randn(130, 64), "int8:channel0:fp32")
    sums = run_of_fused_linear(x, weight)[0]
    exact = function(sums.double())
    error = units * 2.0**-24 * (sums.double() if of_x else exact).abs() + 2.0**-140
    by = results(exact.float(), fmt)[0]
    codes = P.unpack(run_of_fused_linear(x, weight, activation=activation, y=by)[0], fmt, 130).int()
    scale, low, high = by.scale.double(), *parse(fmt).element.limits("asym" in fmt)
    zero = 0 if by.zero_point is None else by.zero_point
    least, most = (
        (((exact + e) / scale * (1 + s * 2.0**-23)).round() + zero).clamp(low, high)
        for e, s in ((-error, -exact.sign()), (error, exact.sign()))
    )
    assert (least <= codes).all()
    assert (codes <= most).all()
    assert (least != most).double().mean() < 0.01  # else it says little


def test_results_at_the_middle_of_two_codes(isa: str) -> None:
    """Sums are integers times 0.1, steps 0.2: ties, but for what rounding to float32 does."""
    del isa
    step = torch.tensor([[0.1]])
    x = coded(torch.arange(-127, 128).float()[:, None] * step, "int8:tensor:fp32", QParams(step))
    weight = coded(
        torch.arange(1, 65).float()[:, None], "int8:channel0:fp32", QParams(torch.ones(64, 1))
    )
    y = run_of_fused_linear(x, weight)[0]
    for size in (0.2, 0.6, 0.2 * 3, 1.4, 12.6):
        for zero in (0, 100, 255):
            parts = QParams(torch.tensor([[size]]), None, torch.tensor([[zero]], dtype=torch.int32))
            by = quantizer(parts, "uint8:tensor:fp32:asym")
            found = run_of_fused_linear(x, weight, y=by)[0]
            assert torch.equal(found, P.quantize(y, by))
            assert len(found.unique()) > 10


def test_results_that_are_no_numbers(isa: str) -> None:
    del isa
    x, weight = (
        coded(torch.randn(3, 16), "int8:tensor:fp32"),
        coded(torch.randn(40, 16), "int8:channel0:fp32"),
    )
    bias = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, -3e38] * 8)
    for fmt, scale in itertools.product(
        ("uint8:tensor:fp32:asym", "int8:tensor:fp32", "int4:tensor:fp32"),
        (0.1, 0.0, -0.25, 1e-40, 3e38, torch.nan, torch.inf),
    ):
        zero = torch.tensor([[7]], dtype=torch.int32) if "asym" in fmt else None
        by = quantizer(QParams(torch.tensor([[scale]]), None, zero), fmt)
        for activation in ACTIVATIONS:
            y = run_of_fused_linear(x, weight, bias=bias, activation=activation)[0]
            assert torch.equal(
                run_of_fused_linear(x, weight, bias=bias, activation=activation, y=by)[0],
                P.quantize(y, by),
            )


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32), (32,), (2, 3, 2, 32), (5, 0)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    for fmt, y_fmt in itertools.product(
        ("uint8:tensor:fp32:asym", "int4:tensor:fp32"), ("", *ENDS[:2])
    ):
        x, weight = (
            coded(torch.randn(shape), fmt),
            coded(torch.randn(7, shape[-1]), "int8:channel0:fp32"),
        )
        by = results(torch.randn(7), y_fmt)[0] if y_fmt else UNQUANTIZED
        if y_fmt:  # of the result's rank
            parts = (None if p is None else p.reshape((1,) * len(shape)) for p in by[:2])
            by = Quantizer(*parts, None, y_fmt)
        bias = torch.randn(7)
        found = run_of_fused_linear(x, weight, bias=bias, activation="relu", y=by)[0]
        with bs.use("reference"):
            expected = LINEAR(x, weight, bias=bias, activation="relu", y=by)[0]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(found, expected, atol=1 if y_fmt else 1e-4, rtol=1e-5)


def test_codes_that_do_not_lie_in_order_and_scales_of_any_rank() -> None:
    fmt = "uint8:tensor:fp32:asym"
    x, weight = coded(torch.randn(3, 4, 32), fmt), coded(torch.randn(7, 32), "int8:channel0:fp32")
    y = run_of_fused_linear(x, weight)[0]
    strided = x._replace(data=x.data.repeat_interleave(2, -1)[..., ::2])
    assert torch.equal(run_of_fused_linear(strided, weight)[0], y)
    for rank in (0, 1):
        flat = x._replace(
            scale=x.scale.reshape((1,) * rank), zero_point=x.zero_point.reshape((1,) * rank)
        )
        assert torch.equal(run_of_fused_linear(flat, weight)[0], y)


def test_threads() -> None:
    x, weight = (
        coded(torch.randn(200, 700), "uint8:token:fp32:asym"),
        coded(torch.randn(1100, 700), "int8:channel0:fp32"),
    )
    by = results(torch.randn(200, 1100) * 20, "uint8:tensor:fp32:asym")[0]
    one = run_of_fused_linear(x, weight, activation="gelu", y=by)[0]
    torch.set_num_threads(2)
    assert torch.equal(run_of_fused_linear(x, weight, activation="gelu", y=by)[0], one)


def test_fused_linear_what_does_not_fit_is_an_error() -> None:
    fmt = "uint8:tensor:fp32:asym"
    x, weight = coded(torch.randn(3, 32), fmt), coded(torch.randn(7, 32), "int8:channel0:fp32")
    by = results(torch.randn(3, 7), fmt)[0]
    for bad, match in (
        ((x._replace(data=x.data[:, :31], size=31), weight), "expected x of shape"),
        ((x._replace(data=x.data.to(torch.int8)), weight), "packed as"),
        ((x._replace(scale=x.scale.repeat(3, 1)), weight), "expected torch.float32"),
        ((x._replace(zero_point=x.zero_point.long()), weight), "expected torch.int32"),
        ((x._replace(zero_point=None), weight), r"zero.point"),
        ((x, weight._replace(scale=weight.scale[:5])), "expected torch.float32"),
    ):
        with pytest.raises(ValueError, match=match), bs.use("cpu"):
            LINEAR(*bad)
    with pytest.raises(ValueError, match="expected"), bs.use("cpu"):
        LINEAR(x, weight, y=by._replace(scale=by.scale.repeat(3, 1)))
    with pytest.raises(RuntimeError, match="expand"), bs.use("cpu"):
        LINEAR(x, weight, bias=torch.zeros(5))


def test_what_the_kernel_leaves_to_the_composition() -> None:
    """Weights of floats, dtypes that it does not know: the op runs nevertheless."""
    x, weight = torch.randn(3, 32), coded(torch.randn(7, 32), "int8:channel0:fp32")
    for given in ((Value(x), Value(torch.randn(7, 32))), (Value(x.double()), weight)):
        assert supporting("fused_linear", "cpu", (given[1].fmt,), _arguments(*given, {})) is None
        with bs.use("reference"):
            expected = LINEAR(*given)[0]
        torch.testing.assert_close(LINEAR(*given)[0], expected)


DTYPES_of_embedding = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def table(fmt: str, rows: int, size: int, seed: int = 1) -> Operand:
    """A quantized table."""
    form, draw = parse(fmt), torch.tensor([1, 2])
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(rough((rows, size), seed), fmt, draw)
    return operand(packed, P.from_list(parts, form), fmt, size)


def wrong_of_embedding(
    stored: Operand, indices: Tensor, threads: int = 1
) -> list[tuple[str, torch.dtype]]:
    """Instruction sets and dtypes whose bits differ from the reference's."""
    bad = []
    for dtype in DTYPES_of_embedding:
        with bs.use("reference"):
            expected = embedding(stored, indices, dtype)
        for isa in _native.isas():
            with settings(isa, threads):
                if not same(embedding(stored, indices, dtype), expected):
                    bad.append((isa, dtype))
    return bad


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*CATALOG, *EXTRA])
def test_rows(fmt: str) -> None:
    for rows, size in [(19, 37), (40, 64), (3, 1), (1, 5)]:
        indices = torch.randint(rows, (4, 3))
        assert wrong_of_embedding(table(str(parse(fmt)), rows, size), indices) == [], (rows, size)


@pytest.mark.some(16)
@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_and_blocks(element: str) -> None:
    for i, block in enumerate(BLOCKS[ELEMENTS.index(element) % 6 :: 6]):
        fmt = spelling(7 * i + ELEMENTS.index(element), element, block)
        assert wrong_of_embedding(table(fmt, 21, 203), torch.tensor([20, 0, 7, 7, 16])) == [], fmt


@pytest.mark.parametrize(
    "indices",
    [
        torch.tensor(3),
        torch.tensor([], dtype=torch.long),
        torch.zeros(2, 0, 3, dtype=torch.long),
        torch.arange(19, dtype=torch.int32),
        torch.tensor([[18, 0], [7, 7]], dtype=torch.int32).t(),
        torch.arange(38)[::2] // 2,
        torch.tensor(5).expand(3, 4),
    ],
    ids=["one", "none", "none of 3", "int32", "transposed", "strided", "expanded"],
)
def test_kinds_of_indices(indices: Tensor) -> None:
    for fmt in (
        *("int4:group16:fp16:asym", "uint4:group16:fp16:asym(fp16)"),
        *("e2m1:group16:e4m3", "int12:tile4x16:fp32"),
    ):
        assert wrong_of_embedding(table(fmt, 19, 37), indices) == []


@pytest.mark.parametrize("size", [2047, 2048, 2049, 4100])
def test_long_rows_and_threads(size: int) -> None:
    for fmt in ("int4:group48:e8m0/floor", "int3:tile2x100:fp32:asym", "e2m1:group16:e4m3:recip"):
        indices = torch.randint(9, (20,))
        assert wrong_of_embedding(table(fmt, 9, size), indices, threads=3) == [], fmt


def test_many_short_rows() -> None:
    assert (
        wrong_of_embedding(table("int4:group8:fp32", 50, 8), torch.randint(50, (20000,)), threads=2)
        == []
    )


@pytest.mark.parametrize("index", [-1, 19, 2**40, -(2**63)])
def test_indices_that_are_no_row(isa: str, index: int) -> None:
    stored = table("int4:group16:fp32", 19, 37)
    for indices in (torch.tensor(index), torch.tensor([[0, 1], [index, 2]])):
        with bs.use("cpu"), pytest.raises(IndexError, match=f"out of range: .*{index}.* 19 rows"):
            embedding(stored, indices, torch.float32)


def test_an_empty_table(isa: str) -> None:
    stored = table("int4:group16:fp32", 0, 37)
    with bs.use("cpu"):
        none = torch.zeros(0, dtype=torch.long)
        assert embedding(stored, none, torch.float32).shape == (0, 37)
        with pytest.raises(
            IndexError, match=r"index out of range: found 0 \.\.\. 0 for a table of 0 rows"
        ):
            embedding(stored, torch.tensor([0]), torch.float32)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool, torch.float32], ids=str)
def test_indices_of_other_dtypes(isa: str, dtype: torch.dtype) -> None:
    stored = table("int4:group16:fp32", 19, 37)
    with bs.use("cpu"), pytest.raises(IndexError, match=f"int64 or int32 .* found {dtype}"):
        embedding(stored, torch.ones(3, dtype=dtype), torch.float32)


WITHOUT = ("int8:group8:(nf4:group4:fp32):recip", "int4:group8:(uint6:group4:fp16):recip")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", crossed(3, FORMATS))
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    if not runs("cpu", "quantize", fmt):
        return  # kernels of its element or offset are not here
    for shape in shapes(fmt):
        for x in (torch.randn(shape), torch.rand(shape) + 1, awkward(shape)):
            for dtype in (torch.float32, torch.bfloat16):
                assert not wrong(x.to(dtype), fmt), (shape, dtype)
    turned = torch.randn(64, 8).t()
    assert not wrong(turned, fmt)
    assert not wrong(torch.zeros(4, 64), fmt)


def _skip_unless_clamped() -> None:
    """Where the kernels of plain formats give other bits for a scale of -0, so do these."""
    by = quantizer(QParams(torch.full((1, 1), -0.0)), "int8:tensor:fp32:recip")
    x = torch.full((1, 1), 1e-40)
    with bs.use("reference"):
        expected = P.quantize(x, by)
    if not torch.equal(P.quantize(x, by), expected):
        pytest.skip("this library does not clamp the reciprocal of -0 (numerics.md, 4)")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_given_scales_may_be_anything(fmt: str, odd: bool, seed: int) -> None:
    if not runs("cpu", "quantize", fmt):
        return
    if fmt.endswith(":recip") and (odd or "/inv" in fmt):
        _skip_unless_clamped()
    for shape in shapes(fmt):
        qparams, x = given_scales(fmt, shape, seed, odd), awkward(shape, seed)
        with bs.use("reference"):
            packed = P.quantize(x, quantizer(qparams, fmt, torch.tensor([3, 1])))
            expected = encoding(x, fmt, qparams, torch.tensor([3, 1]))
            expected |= decoding(packed, fmt, qparams, shape[-1], len(shape))
        with settings(bs.kernels.cpu._native.isas()[-1], 1):
            found = encoding(x, fmt, qparams, torch.tensor([3, 1]))
            found |= decoding(packed, fmt, qparams, shape[-1], len(shape))
        assert not differing(found, expected), shape


def test_reciprocals_of_two_levels_are_left_to_the_reference() -> None:
    for fmt in WITHOUT:
        assert not runs("cpu", "quantize", fmt)
        assert runs("cpu", "dequantize", fmt) and runs("cpu", "choose_qparams", fmt)


def test_plain_formats_have_their_own_kernels() -> None:
    assert runs("cpu", "quantize", "int8")
    for fmt in ("int4:group32:fp32", "e2m1:group16:e4m3", "int8:group32:e8m0"):
        for op in ("quantize", "dequantize", "linear"):
            found = bs.kernels.registry.supporting(op, "cpu", (fmt,), ())
            place = "linear" if op == "linear" else "quantize"
            assert found is not None and found.run.__module__.endswith(f"cpu.{place}")


def model(fmt: str, inputs: str | None, n: int, k: int) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(k, n))
    bs.quantize_(made, bs.Recipe(fmt, input=inputs))
    return made


@pytest.mark.some(16)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("inputs", [None, "int8", "int8:token:fp16:signed", "e4m3:flat32:fp32"])
def test_linear_layers(fmt: str, inputs: str | None) -> None:
    if not runs("cpu", "linear", fmt) or not runs("cpu", "quantize", fmt):
        return
    for n, k in ((24, 96), (7, 40)):
        layer = model(fmt, inputs, n, k)[0]
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(3, 2, k).to(dtype)
            with bs.use("reference"):
                expected = layer(x)
                values = x.float() if inputs is None else bs.fake_quantize(x.float(), inputs)
                size = values.abs() @ layer.dequantize_weight().abs().T + layer.bias.abs()
            with bs.use("cpu"):
                found = layer(x)
            assert found.dtype == dtype and found.shape == expected.shape
            bound = 64 * 2.0**-24 * size + expected.abs() * (2.0**-7 if dtype.itemsize == 2 else 0)
            assert bool(((found.float() - expected.float()).abs() <= bound).all())


def test_what_is_made_for_a_weight_is_kept_and_freed_with_it() -> None:
    set_aside()
    before = len(OPS._weights)
    for fmt in ("int4:group32:(int6:group16:fp16)", "int4:group32:fp16:signed", "int4:flat64:fp32"):
        layer, x = model(fmt, None, 8, 64)[0], torch.randn(2, 64)
        with bs.use("cpu"), torch.no_grad():
            first = layer(x)
            kept = OPS._weights[layer.weight.operand]
            assert OPS._weights[layer.weight.operand] is kept
            assert len(OPS._weights) == before + 1
            assert set(layer.state_dict()) == set(copy.deepcopy(layer).state_dict())
            layer.weight.scale.copy_(layer.weight.scale.roll(1))
            changed = layer(x)
        with bs.use("reference"), torch.no_grad():
            torch.testing.assert_close(changed, layer(x))
        assert not torch.equal(first, changed)
        del layer, kept
        gc.collect()
        assert len(OPS._weights) == before, fmt


def test_parts_that_would_outgrow_the_codes_are_not_kept() -> None:
    layer = model("int4:flat4@0:fp32", None, 6, 64)[0]  # each element has its own scale
    with bs.use("cpu"), torch.no_grad():
        assert OPS._weights[layer.weight.operand] is None
        found = layer(torch.ones(1, 64))
    with bs.use("reference"), torch.no_grad():
        torch.testing.assert_close(found, layer(torch.ones(1, 64)))


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", FORMATS)
def test_tables_and_convolutions(fmt: str) -> None:
    if not runs("cpu", "embedding", fmt) or not runs("cpu", "quantize", fmt):
        return
    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(20, 40), nn.Conv1d(4, 8, 3))
    if "4@0" not in fmt:
        made.extend([nn.Conv2d(5, 3, 3), nn.ConvTranspose2d(5, 4, 3, stride=2)])
    rules = {name: {"input": "int8:token:fp16:signed"} for name in "13"[: len(made) - 2 or 1]}
    bs.quantize_(made, bs.Recipe(fmt, rules=rules))
    indices = torch.randint(0, 20, (3, 4))
    small, large = torch.randn(2, 4, 9), torch.randn(2, 5, 9, 9)

    def results() -> list[torch.Tensor]:
        return [made[1](small), *(layer(large) for layer in made[2:])]

    with bs.use("reference"):
        rows, expected = made[0](indices), results()
    with bs.use("cpu"):
        assert torch.equal(made[0](indices), rows)
        found = results()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_formats_that_are_restated_are_not_left_out() -> None:
    """Those that need no kernel of codebooks or offsets: the matrices above are not empty."""
    assert sum(runs("cpu", "quantize", fmt) for fmt in FORMATS) >= 17
    assert sum(runs("cpu", "quantize", fmt) for fmt in UNCHOSEN) >= 6
