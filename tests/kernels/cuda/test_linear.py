# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers in Triton's interpreter: formats, inputs, dtypes, sizes, within the tolerance."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.cuda_matmul_exact import NOTHING, excess, stored
from tests.support.some import crossed

WEIGHTS = (
    *CATALOG.values(),
    *("int4:group32:fp32", "uint4:group32:e8m0/floor:asym", "int3:group16:fp16", "e7m0:token:fp32"),
    *(
        "int8:tile16x32:fp32",
        "int8:tile16x32:e8m0/floor",
        "int8:channel1:fp32",
        "uint8:group64:fp32",
    ),
    *(
        "e2m1:group16:(e4m3:token:fp32)",
        "int8:group16:(uint8:tensor:fp32)",
        "uint4:token:fp32:asym",
    ),
    *("log4:group32:e8m0/ceil", "e3m0:group64:pow2/even", "e4m3:group16:e5m2", "int8:group20:fp32"),
    *("int2:group64:e8m0/floor", "e2m1:token:e4m3", "int8:token:fp16", "e4m3:token:e8m0/floor"),
    *("int8:block8x*:fp32", "int4:block*x32:fp32", "e2m1:block*x32:e8m0/floor"),
    *("uint4:group32:fp16:asym(fp16)", "uint8:token:fp32:asym(fp32)"),
    "int4:group20:e4m3:asym(bf16)",
    *("uint4:block4x*:bf16:asym", "e2m1:block*x16:e4m3", "int4:block4x*:e8m0/floor"),
)
INPUTS = (
    *("", "int8:token:fp32", "e4m3:token:fp32", "int8:tensor:fp32", "int8:group32:e8m0/floor"),
    *("uint8:token:fp32:asym", "e2m1:group16:e4m3", "int4:group32:fp32", "e4m3:group32:e8m0/floor"),
    *("ternary:token:fp32", "int8:channel-1:fp32", "int16:token:fp32", "int8:token:e4m3"),
    *("int8:block2x*:fp32", "e2m1:block*x16:e8m0/floor", "uint8:token:fp32:asym(fp32)"),
)
SIZES = ((1, 96, 7), (3, 128, 33), (5, 80, 1), (18, 64, 17), (2, 100, 5))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No table of this machine, the same numbers every time; without a GPU, see conftest.py.

    Kernels are imported in the tests: the interpreter is switched on after this file is read.
    """
    from blockscale.kernels import cuda

    if cuda.available() is not None or not cuda.interpreting():
        pytest.skip("for Triton's interpreter; on a GPU tests/gpu/test_linear.py does this")
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
    torch.manual_seed(0)


def run(x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> Tensor:
    given = more.get("given", NOTHING)
    with bs.use("cuda"):
        return linear(
            x,
            Operand(*weight, fmt, x.shape[-1]),
            more.get("bias"),
            Quantizer(*given, input_fmt, None),
        )


def check(x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> None:
    y = run(x, weight, fmt, input_fmt, **more)
    assert excess(y, x, weight, fmt, input_fmt, **more) <= 1, (fmt, input_fmt, tuple(x.shape))


def test_tables_as_one_bfloat16_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bfloat16 result hides what that loses, unless the environment forbids it."""
    fmt, x = str(parse("nf4:group64:fp32")), torch.randn(5, 128)
    weight = stored(torch.randn(33, 128), fmt)
    hidden = run(x.bfloat16(), weight, fmt)
    check(x.bfloat16(), weight, fmt)
    check(x.half(), weight, fmt)
    monkeypatch.setenv("BLOCKSCALE_WEIGHT_PRODUCTS", "exact")
    y = run(x.bfloat16(), weight, fmt)
    assert excess(y, x.bfloat16(), weight, fmt, ulps=64) <= 1 and not torch.equal(y, hidden)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", crossed(3, WEIGHTS))
def test_every_weight_format(fmt: str) -> None:
    start = len(fmt)
    for i, input_fmt in enumerate(("", INPUTS[1 + start % (len(INPUTS) - 1)])):
        m, k, n = SIZES[(i + start) % len(SIZES)]
        dtype = DTYPES[(i + start) % 3]
        weight = stored(torch.randn(n, k), fmt)
        bias = torch.randn(n).to(dtype) if i % 2 else None
        check(torch.randn(m, k).to(dtype), weight, fmt, input_fmt, bias=bias)


@pytest.mark.some(3)
@pytest.mark.parametrize("input_fmt", crossed(2, INPUTS))
def test_every_input_format(input_fmt: str) -> None:
    for i, fmt in enumerate(("int8:channel0:fp32", "e2m1:group32:e8m0/floor", "e4m3:tensor:fp32")):
        weight = stored(torch.randn(9, 64), fmt)
        check(torch.randn(2, 3, 64).to(DTYPES[i]), weight, fmt, input_fmt, bias=torch.randn(9))


def ways(fmt: str, k: int) -> list:
    """One of each way that can run this weight."""
    from blockscale.kernels.cuda.matmul.blocks import BlocksSettings
    from blockscale.kernels.cuda.matmul.choice import Choice
    from blockscale.kernels.cuda.matmul.dense import DenseSettings
    from blockscale.kernels.cuda.matmul.reading import reading
    from blockscale.kernels.cuda.matmul.tile import TileSettings

    r = reading(fmt, k)
    words = 16 if r.per_block else 32
    return [
        Choice("tile", TileSettings(16, 16, words, 4, 1)),
        Choice("tile", TileSettings(16, 16, 16, 4, 1, 2)),
        Choice("blocks", BlocksSettings(16, 16, 32, 4, 1, 2))
        if r.per_block
        else Choice("dense", DenseSettings()),
    ]


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    ["int4:group128:fp32", "uint4:group128:fp32:asym", "e2m1:group16:e4m3", "mxint8", "uint8"],
)
def test_every_way(fmt: str) -> None:
    """More tiles than one, k in parts, the last ones partial; x in one, two and three parts."""
    from blockscale.kernels.cuda.linear import weighted
    from blockscale.kernels.cuda.matmul.input import Values
    from blockscale.kernels.cuda.matmul.weight import Weight

    fmt, k, n, m = str(parse(fmt)), 160, 18, 9
    weight = Weight(*stored(torch.randn(n, k), fmt))
    for i, choice in enumerate(ways(fmt, k)):
        dtype = DTYPES[(i + len(fmt)) % 3]
        x, bias, row = torch.randn(m, k).to(dtype), torch.randn(n), torch.rand(m) + 0.5
        y = weighted(Values(x, row), weight, fmt, bias, torch.float32, choice)
        scaled = x.float() * row[:, None]
        assert excess(y, scaled, weight, fmt, bias=bias) <= 1, (dtype, choice)


def test_integers_of_both_sides_are_exact() -> None:
    """Sums of int8 products, where float32 would round, against int64."""
    fmt, k, n, m = "int8:channel0:fp32:full", 512, 18, 5
    codes = torch.randint(-128, 128, (n, k)).to(torch.int8)
    x = torch.randint(-127, 128, (m, k)).float()
    x[:, 0] = 127  # so that the scale of a row is 1
    y = run(x, (codes, torch.ones(n, 1), None, None), fmt, "int8:token:fp32")
    assert torch.equal(y.long(), x.long() @ codes.long().T)
    big = torch.full((2, k), 127, dtype=torch.int8)  # 512 · 127² has more bits than bfloat16 sums
    y = run(x[:1] * 0 + 127.0, (big, torch.ones(2, 1), None, None), fmt, "int8:token:fp32")
    assert y.tolist() == [[127 * 127 * k] * 2]


def test_powers_of_two_are_exact_to_the_last_bit() -> None:
    fmt, k = "int8:group32:e8m0/floor", 96
    codes = torch.randint(-15, 16, (7, k)).to(torch.int8)
    scale = torch.randint(131, 136, (7, 3)).to(torch.uint8)
    x = torch.randint(-15, 16, (5, k)).float()
    dense = P.dequantize.reference(Operand(codes, scale, None, None, fmt, k), torch.float32)
    for dtype in DTYPES:
        y = run(x.to(dtype), (codes, scale, None, None), fmt)
        assert torch.equal(y, (x @ dense.T).to(dtype))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
@pytest.mark.parametrize(
    "fmt", ["int4:group128:fp32", "e4m3:group32:e8m0/floor", "int8:channel0:fp32"]
)
def test_numbers_that_are_not(fmt: str) -> None:
    w = torch.randn(6, 128)
    w[4] = 0.0
    weight = stored(w, fmt)
    for i, odd in enumerate((torch.inf, -torch.inf, torch.nan)):
        x = torch.randn(3, 128)
        x[1, 7] = odd
        for input_fmt in ("", ("int8:token:fp32", "int8:group32:e8m0/floor")[i % 2]):
            with bs.use("reference"):
                expected = linear(
                    x,
                    Operand(*weight, fmt, x.shape[-1]),
                    None,
                    Quantizer(*NOTHING, input_fmt, None),
                )
            y = run(x, weight, fmt, input_fmt)
            assert torch.equal(y.isnan(), expected.isnan()), (odd, input_fmt)
            assert torch.equal(y.isinf(), expected.isinf()), (odd, input_fmt)
    codes, scale, *_ = stored(w, "e4m3:group32:e8m0/floor")
    scale[2, 1], codes[3, 5] = 255, 0x7F  # a poisoned block, a NaN code
    y = run(torch.randn(2, 128), (codes, scale, None, None), "e4m3:group32:e8m0/floor")
    assert y.isnan().any(0).tolist() == [False, False, True, True, False, False]


def test_small_and_large_numbers() -> None:
    fmt = "int8:group32:e8m0/floor"
    for w_size, x_size in ((1e-30, 1.0), (1e30, 1e-3), (1.0, 1e-25), (1.0, 1e30)):
        check(torch.randn(3, 64) * x_size, stored(torch.randn(5, 64) * w_size, fmt), fmt)


@pytest.mark.parametrize("shape", [(64,), (2, 3, 64), (0, 64), (2, 0, 64)], ids=str)
def test_shapes_of_x(shape: tuple[int, ...]) -> None:
    for fmt, input_fmt in itertools.product(
        ("int8:channel0:fp32", "mxfp4"), ("", "int8:token:fp32")
    ):
        fmt = str(parse(fmt))
        weight = stored(torch.randn(6, 64), fmt)
        check(torch.randn(shape), weight, fmt, input_fmt, bias=torch.randn(6))
        check(torch.randn((*shape, 2))[..., 0], weight, fmt, input_fmt)


def test_no_inputs_and_no_outputs() -> None:
    fmt = "int8:channel0:fp32"
    for m, k, n in ((3, 0, 5), (3, 16, 0), (0, 0, 0)):
        bias = torch.randn(n)
        y = run(torch.randn(m, k), stored(torch.randn(n, k), fmt), fmt, bias=bias)
        assert torch.equal(y, bias.expand(m, n))


def test_given_scales() -> None:
    fmt = "int8:channel0:fp32"
    x, weight = torch.randn(2, 5, 48), stored(torch.randn(9, 48), fmt)
    for input_fmt in ("int8:tensor:fp32", "uint8:tensor:fp32:asym", "int8:channel-1:fp32",
                      "int8:token:fp32", "int8:tensor:e8m0/floor"):  # fmt: skip
        given = P.choose_qparams.reference(x * 0.7, input_fmt)
        scale, outer, zero = P.from_list(given, parse(input_fmt))[:3]
        check(x, weight, fmt, input_fmt, given=(scale, zero, outer))


def test_strided_codes_and_scales() -> None:
    fmt = "int4:group128:fp32"
    codes, scale, *_ = stored(torch.randn(9, 256), fmt)
    wide = torch.zeros(9, 131, dtype=torch.uint8)
    wide[:, 1:129] = codes  # rows that do not start at words
    check(torch.randn(3, 256), (wide[:, 1:129], scale, None, None), fmt)
    check(torch.randn(3, 256), (codes.t().contiguous().t(), scale.expand(9, 2), None, None), fmt)


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
