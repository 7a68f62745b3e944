# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers in Triton's interpreter: formats, inputs, dtypes, sizes, within the tolerance."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value, operand, quantizer
from blockscale.core.pack import to_stored
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels import registry
from blockscale.kernels.cuda import linear as module
from blockscale.kernels.registry import use
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.embedding import embedding
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from tests.kernels.restated import FORMATS, UNCHOSEN, awkward, given, runs
from tests.support.batch_rows import PAIRS
from tests.support.cuda_equal import DEVICE, wrong
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


@pytest.mark.some(8)
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
    from blockscale.kernels.cuda.matmul.choice import WayChoice
    from blockscale.kernels.cuda.matmul.dense import DenseSettings
    from blockscale.kernels.cuda.matmul.reading import reading
    from blockscale.kernels.cuda.matmul.tile import TileSettings

    r = reading(fmt, k)
    words = 16 if r.per_block else 32
    return [
        WayChoice("tile", TileSettings(16, 16, words, 4, 1)),
        WayChoice("tile", TileSettings(16, 16, 16, 4, 1, 2)),
        WayChoice("blocks", BlocksSettings(16, 16, 32, 4, 1, 2))
        if r.per_block
        else WayChoice("dense", DenseSettings()),
    ]


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    ["int4:group128:fp32", "uint4:group128:fp32:asym", "e2m1:group16:e4m3", "mxint8", "uint8"],
)
def test_every_way(fmt: str) -> None:
    """More tiles than one, k in parts, the last ones partial; x in one, two and three parts."""
    from blockscale.kernels.cuda.linear import weighted
    from blockscale.kernels.cuda.matmul.operands import Values, Weight

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


@pytest.mark.some(8)
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


@pytest.mark.slow
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


@pytest.mark.some(16)
@pytest.mark.parametrize(("weight_format", "input_format"), PAIRS)
def test_rows_do_not_depend_on_their_batch(weight_format: str, input_format: str | None) -> None:
    """By tiles of one size, or a row at a time; on a GPU: tests/gpu/test_batch_rows.py."""
    by = Quantizer(*NOTHING, str(parse(input_format)) if input_format else "")
    with bs.use("reference"):
        weight = bs.quantize(torch.randn(16, 64), weight_format).operand
        x = torch.randn(40, 64).bfloat16()
        expected = linear(x, weight, None, by)

    def run(x: Tensor) -> Tensor:
        return linear(x, weight, None, by)

    with bs.use("cuda", batch_invariant=True):
        y = run(x)
        assert torch.equal(run(x[:7]), y[:7])
        assert all(torch.equal(run(x[i : i + 1]), y[i : i + 1]) for i in (0, 39))
    assert torch.allclose(y.float(), expected.float(), rtol=2.0**-7, atol=0.05)


LINEAR = FUSED["linear"].op
FORMATS_of_fused_linear = [
    ("", "int8_channel", ""),
    ("", "mxfp4", ""),
    ("int8:tensor:fp32", "int8_channel", ""),
    ("uint8:tensor:fp32:asym", "int8_channel", "int8:tensor:fp32"),
    ("int8:token:fp32", "int4:group32:fp32", ""),
    ("e4m3:group32:e8m0/floor", "e4m3:group32:e8m0/floor", "int8:token:fp32"),
    ("int8:tensor:fp32:toward_zero", "int8_channel", ""),
]


def coded(x, fmt):
    if not fmt:
        return Value(x)
    codes, *parts = P.choose_quantize(x, str(bs.parse(fmt)), None)
    named = P.from_list(parts, bs.parse(fmt))
    own = (codes, named.scale, named.zero_point, named.outer, str(bs.parse(fmt)), x.shape[-1])
    return Value(*own)


def case(x_fmt, w_fmt, y_fmt, rows=(2, 5)):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(*rows, 64, generator=random)
    w = torch.randn(24, 64, generator=random)
    bias = torch.randn(24, generator=random)
    y = UNQUANTIZED
    if y_fmt and bs.parse(y_fmt).block.static:
        y = Quantizer(torch.full((1,) * x.ndim, 0.25), None, None, str(bs.parse(y_fmt)))
    elif y_fmt:
        y = Quantizer(None, None, None, str(bs.parse(y_fmt)))
    with bs.use("reference"):
        return coded(x, x_fmt), coded(w, w_fmt), bias, y


@pytest.mark.some(4)
@pytest.mark.parametrize(("x_fmt", "w_fmt", "y_fmt"), FORMATS_of_fused_linear)
@pytest.mark.parametrize("activation", ["", "gelu"])
def test_near_the_reference(x_fmt, w_fmt, y_fmt, activation):
    arguments = (*case(x_fmt, w_fmt, y_fmt), activation, torch.float32)
    x, weight, bias, y, activation, dtype = arguments
    with bs.use("reference"):
        expected = LINEAR(x, weight, bias, activation, dtype, y)
    with bs.use("cuda"):
        found = LINEAR(x, weight, bias, activation, dtype, y)
    assert [part.shape for part in found] == [part.shape for part in expected]
    if not y.fmt:
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=2e-5)
    else:  # codes of floats that may differ in their last bits
        apart = (found[0].to(torch.int32) - expected[0].to(torch.int32)).abs()
        assert apart.max() <= 1
        assert (apart > 0).float().mean() < 0.02


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "int4:tensor:fp16"])
def test_codes_come_back(fmt):
    """Those that `linear` makes of the values are those that x came with."""
    x, _, _, _ = case(fmt, "int8_channel", "")
    values, by = module._floats(x, torch.float32)
    assert by.fmt == x.fmt
    with bs.use("reference"):
        assert torch.equal(P.quantize(values, by), x.data)


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32:toward_zero", "mxfp8", "int8:token:fp32"])
def test_codes_that_may_not_come_back_stay_floats(fmt):
    x, _, _, _ = case(fmt, "int8_channel", "")
    assert module._floats(x, torch.float32)[1] is UNQUANTIZED


def test_one_scale_of_another_rank():
    x, weight, bias, _ = case("int8:tensor:fp32", "int8_channel", "")
    flat = x._replace(scale=x.scale.reshape(()))
    with bs.use("cuda"):
        found = LINEAR(flat, weight, bias, "", torch.float32, UNQUANTIZED)
        assert torch.equal(found[0], LINEAR(x, weight, bias, "", torch.float32, UNQUANTIZED)[0])


def test_what_no_kernel_takes_is_left_to_others():
    x, weight, bias, y = case("", "int8_channel", "")
    assert registry.supporting("fused_linear", "cuda", ("", weight.fmt, ""), (
        x, weight, bias, "softsign", torch.float32, y)) is None  # fmt: skip
    assert registry.supporting("fused_linear", "cuda", ("", "", ""), (
        x, Value(torch.zeros(2, 64)), bias, "", torch.float32, y)) is None  # fmt: skip


FORMATS_of_conv = (
    *("int8:channel0:fp32", "int4:group32:fp32", "uint4:group16:fp16:asym", "e2m1:group16:e4m3"),
    *("e4m3:group32:e8m0/floor", "int8:tensor:fp32", "int8:channel1:fp32", "log4:token:fp32"),
    *("binary:channel0:fp32", "e3m2:group32:e8m0/tosa", "int8:block2x*:fp32"),
)


@pytest.fixture(autouse=True)
def _here_of_conv() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", FORMATS_of_conv)
@pytest.mark.parametrize("given", ["", "int8:token:fp32", "e4m3:group8:e8m0/floor"])
def test_convolutions(fmt: str, given: str) -> None:
    float_weight = torch.randn(6, 8, 3, 3, device=DEVICE)
    weight = stored(to_stored(float_weight, "channels_last"), fmt)
    x = torch.randn(2, 16, 7, 6, device=DEVICE)
    bias = torch.randn(6, device=DEVICE)
    args = (
        x, Operand(*weight, fmt, 72), bias, [6, 8, 3, 3], [2, 1], [1, 0], [1, 2], 2,
        Quantizer(*NOTHING, given),
    )  # fmt: skip
    with use("cuda"):
        found = conv(*args)
    with use("reference"):
        values = conv.reference(*args)
    dense = x.abs().amax() * float_weight.abs().sum() / 6
    assert (found - values).abs().max() <= 64 * 2.0**-24 * dense


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", FORMATS_of_conv[:4])
@pytest.mark.parametrize("given", ["", "int8:token:fp32"])
def test_three_dimensions(fmt: str, given: str) -> None:
    float_weight = torch.randn(6, 4, 2, 3, 2, device=DEVICE)
    weight = stored(to_stored(float_weight, "channels_last"), fmt)
    x = torch.randn(2, 8, 4, 5, 3, device=DEVICE)
    args = (
        x, Operand(*weight, fmt, 48), None, [6, 4, 2, 3, 2], [2, 1, 1], [1, 0, 1], [1, 2, 1], 2,
        Quantizer(*NOTHING, given),
    )  # fmt: skip
    with use("cuda"):
        found = conv(*args)
    with use("reference"):
        values = conv.reference(*args)
    dense = x.abs().amax() * float_weight.abs().sum() / 6
    assert (found - values).abs().max() <= 64 * 2.0**-24 * dense


FORMATS_of_embedding = (
    *("int8:channel0:fp32", "int4:group32:fp32", "uint4:group16:fp16:asym", "e2m1:group16:e4m3"),
    *("e4m3:group32:e8m0/floor", "int8:tensor:fp32", "int8:channel1:fp32", "log4:token:fp32"),
    "uint4:group16:fp16:asym(fp16)",
    *("binary:channel0:fp32", "e3m2:group32:e8m0/tosa", "int4:block*x32:fp32"),
)


@pytest.fixture(autouse=True)
def _here_of_embedding() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS_of_embedding)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table(fmt: str, dtype: torch.dtype) -> None:
    weight = stored(torch.randn(9, 80, device=DEVICE), fmt)
    for indices in (torch.tensor([[3, 3, 0], [8, 1, 7]]), torch.tensor(4), torch.tensor([]).long()):
        args = (Operand(*weight, fmt, 80), indices.to(DEVICE), dtype)
        with use("cuda"):
            found = embedding(*args)
        assert torch.equal(found, embedding.reference(*args))


def test_tiles_are_the_references() -> None:
    weight = stored(torch.randn(9, 80, device=DEVICE), "int8:tile4x16:fp32")
    table = Operand(*weight, "int8:tile4x16:fp32", 80)
    args = (table, torch.tensor([1], device=DEVICE), torch.float32)
    with use("cuda"), pytest.raises(RuntimeError, match="no cuda kernel runs embedding"):
        embedding(*args)


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
SHAPES = ((4, 64), (2, 40))
NEW = ("int4:group8:(nf4:group4:fp32):recip", "int4:group8:(uint6:group4:fp16):recip")


@pytest.fixture(autouse=True)
def _here_of_restated() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", crossed(3, FORMATS))
def test_every_primitive_has_the_references_bits(fmt: str) -> None:
    if not runs("cuda", "quantize", fmt):
        return  # kernels of its element or offset are not here
    for shape in SHAPES:
        for x in (torch.randn(shape), awkward(shape)):
            assert not wrong(x, fmt), shape


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
def test_given_scales_of_either_sign(fmt: str) -> None:
    if not runs("cuda", "quantize", fmt):
        return
    for shape in SHAPES[:1]:
        qparams, x = given(fmt, shape, 1, odd=False), torch.randn(shape)
        seed = torch.tensor([3, 1])
        with bs.use("reference"):
            packed = P.quantize(x, quantizer(qparams, fmt, seed))
            values = P.dequantize(operand(packed, qparams, fmt, shape[-1]), torch.float32)
            rounded = P.fake_quantize(x, quantizer(qparams, fmt, seed))
        there = type(qparams)(*(None if p is None else p.to(DEVICE) for p in qparams))
        with use("cuda"):
            by = quantizer(there, fmt, seed.to(DEVICE))
            found = P.quantize(x.to(DEVICE), by)
            assert torch.equal(found.cpu(), packed)
            again = P.dequantize(operand(found, there, fmt, shape[-1]), torch.float32)
            assert torch.equal(again.cpu().nan_to_num(9), values.nan_to_num(9))
            left = P.fake_quantize(x.to(DEVICE), by)
            assert torch.equal(left.cpu().nan_to_num(9), rounded.nan_to_num(9))


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS[::3])
def test_layers(fmt: str) -> None:
    if not runs("cuda", "linear", fmt) or not runs("cuda", "quantize", fmt):
        return
    model = nn.Sequential(nn.Linear(64, 16), nn.Embedding(5, 64)).to(DEVICE)
    bs.quantize_(model, fmt)
    x, indices = torch.randn(3, 64, device=DEVICE), torch.tensor([3, 0], device=DEVICE)
    with torch.no_grad():
        with bs.use("reference"):
            expected, rows = model[0](x), model[1](indices)
        with use("cuda"):
            torch.testing.assert_close(model[0](x), expected, rtol=1e-4, atol=1e-4)
            if runs("cuda", "embedding", fmt):
                assert torch.equal(model[1](indices), rows)


def test_formats_that_are_restated_are_not_left_out() -> None:
    assert sum(runs("cuda", "quantize", fmt) for fmt in FORMATS) >= 17
    for fmt in NEW:
        assert not runs("cuda", "quantize", fmt) and runs("cuda", "dequantize", fmt)
