# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes: floats within the op's tolerance, codes those of the kernel's own floats."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import fused_linear as module
from blockscale.kernels.registry import supporting
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from tests.support.cpu_activate import EXACT, NEAR
from tests.support.cpu_fused_linear import ENDS, coded, results

LINEAR = FUSED["linear"]
ACTIVATIONS = ("", *EXACT, *NEAR)
WEIGHTS = (
    "int8:channel0:fp32",
    "int4:group32:fp32",
    "uint4:group16:fp16:asym",
    "uint4:group16:fp16:asym(fp16)",
    "e2m1:group16:e4m3",
)
INPUTS = (
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
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
OTHERS = (
    *("int8:tensor:fp32:nearest_away", "e4m3:tensor:fp32", "int8:token:fp32", "int16:tensor:fp32"),
    *("int8:group16:e8m0/floor", "int8:tensor:fp32:offset", "binary:tensor:fp32"),
    *("uint8:tensor:fp32:asym(fp32)", "uint8:token:bf16:asym(bf16)"),
)


def run(x: Value, weight: Value, **more) -> list[Tensor]:
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


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", INPUTS)
@pytest.mark.parametrize("weight_fmt", WEIGHTS)
def test_codes_times_codes(isa: str, weight_fmt: str, fmt: str) -> None:
    del isa
    for i, (m, k, n) in enumerate(
        ((1, 96, 33), (7, 50, 7), (14, 64, 64), (2, 1, 40), (40, 100, 35))
    ):
        dtype = DTYPES[i % 3]
        x, weight = coded(torch.randn(m, k) + 0.5, fmt), coded(torch.randn(n, k), weight_fmt)
        bias = torch.randn(n).to(dtype) if i % 2 else None
        close(x, weight, run(x, weight, bias=bias, dtype=dtype)[0], bias)


def test_floats_times_codes(isa: str) -> None:
    """Any float dtype in, any out."""
    del isa
    weight = coded(torch.randn(20, 64), "int4:group32:fp32")
    for given, dtype in itertools.product(DTYPES, DTYPES):
        x = torch.randn(3, 5, 64).to(given)
        y = run(Value(x), weight, dtype=dtype, activation="relu")[0]
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
        for dtype in DTYPES if activation in ("", "silu") else DTYPES[:1]:
            y = run(x, weight, dtype=dtype, **more)[0]
            for by in results(y, fmt):
                found = run(x, weight, dtype=dtype, y=by, **more)
                assert len(found) == 1
                assert torch.equal(found[0], P.quantize(y, by)), (activation, dtype, by)
            chosen = run(x, weight, dtype=dtype, y=Quantizer(None, None, None, fmt), **more)
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
        run(x, weight, y=results(torch.randn(4, 9), fmt)[0], activation="silu")
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
    sums = run(x, weight)[0]
    expected = EXACT[activation](sums)
    assert torch.equal(run(x, weight, activation=activation)[0], expected)
    by = results(expected, fmt)[0]
    assert torch.equal(run(x, weight, activation=activation, y=by)[0], P.quantize(expected, by))


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
    sums = run(x, weight)[0]
    exact = function(sums.double())
    error = units * 2.0**-24 * (sums.double() if of_x else exact).abs() + 2.0**-140
    by = results(exact.float(), fmt)[0]
    codes = P.unpack(run(x, weight, activation=activation, y=by)[0], fmt, 130).int()
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
    y = run(x, weight)[0]
    for size in (0.2, 0.6, 0.2 * 3, 1.4, 12.6):
        for zero in (0, 100, 255):
            parts = QParams(torch.tensor([[size]]), None, torch.tensor([[zero]], dtype=torch.int32))
            by = quantizer(parts, "uint8:tensor:fp32:asym")
            found = run(x, weight, y=by)[0]
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
            y = run(x, weight, bias=bias, activation=activation)[0]
            assert torch.equal(
                run(x, weight, bias=bias, activation=activation, y=by)[0], P.quantize(y, by)
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
        found = run(x, weight, bias=bias, activation="relu", y=by)[0]
        with bs.use("reference"):
            expected = LINEAR(x, weight, bias=bias, activation="relu", y=by)[0]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(found, expected, atol=1 if y_fmt else 1e-4, rtol=1e-5)


def test_codes_that_do_not_lie_in_order_and_scales_of_any_rank() -> None:
    fmt = "uint8:tensor:fp32:asym"
    x, weight = coded(torch.randn(3, 4, 32), fmt), coded(torch.randn(7, 32), "int8:channel0:fp32")
    y = run(x, weight)[0]
    strided = x._replace(data=x.data.repeat_interleave(2, -1)[..., ::2])
    assert torch.equal(run(strided, weight)[0], y)
    for rank in (0, 1):
        flat = x._replace(
            scale=x.scale.reshape((1,) * rank), zero_point=x.zero_point.reshape((1,) * rank)
        )
        assert torch.equal(run(flat, weight)[0], y)


def test_threads() -> None:
    x, weight = (
        coded(torch.randn(200, 700), "uint8:token:fp32:asym"),
        coded(torch.randn(1100, 700), "int8:channel0:fp32"),
    )
    by = results(torch.randn(200, 1100) * 20, "uint8:tensor:fp32:asym")[0]
    one = run(x, weight, activation="gelu", y=by)[0]
    torch.set_num_threads(2)
    assert torch.equal(run(x, weight, activation="gelu", y=by)[0], one)


def test_what_does_not_fit_is_an_error() -> None:
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
