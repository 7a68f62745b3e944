"""The Triton kernels give the reference's bits: on a GPU, or else in Triton's interpreter.

What only compiled code does (division by reciprocal and repair, the GPU's own conversion to fp8)
is in tests/gpu/test_primitives.py.
"""

import math
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels import registry
from blockscale.ops import primitives as P
from tests.core.test_against_rationals import cases
from tests.gpu.test_cuda_reference import SPELLINGS, hard_inputs
from tests.kernels.cuda.equal import DEVICE, DTYPES, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FEW = [
    "mxfp4", "mxfp6", "mxfp8", "mxfp8_e5m2", "mxint8", "nvfp4", "binary", "int8:group32:fp32",
    "ternary:group32:e8m0/floor", "int4:tile4x16:bf16:half", "e2m3:group8@0:fp32:recip", "log4",
    "int8_pow2", "uint4:token:fp16:asym", "int2:channel1:fp32:full", "int6:group7:e8m0/tosa",
    "int8:token:fp32:stochastic", "e2m1:group32@0:(uint4:channel0:fp32):nearest_away",
    "int8:group16:fp32:up", "e3m2:group16:fp32:down", "int12:group16:e4m3:toward_zero",
]  # fmt: skip
QUICK = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
LONG = settings(QUICK, max_examples=400)


def few_rows(dtype: torch.dtype) -> Tensor:
    """Some of the hard inputs: one kind of number a row."""
    return hard_inputs(dtype)[[0, 9, 17, 24, 26, 28, 30, 31], :72].contiguous()


@pytest.mark.parametrize("fmt", FEW)
def test_hard_inputs(fmt: str) -> None:
    """In one of the three dtypes, decoded to the next."""
    i = FEW.index(fmt)
    x = few_rows(DTYPES[i % 3])
    x[6, 5], x[7, 71] = torch.nan, -torch.inf
    assert wrong(x, fmt, decodes=DTYPES[(i + 1) % 3]) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", SPELLINGS)
def test_every_format(fmt: str, dtype: torch.dtype) -> None:
    assert wrong(few_rows(dtype), fmt) == []


@QUICK
@given(cases())
def test_the_whole_grammar(case: tuple[str, Tensor, int, int]) -> None:
    """Small tensors of every rank, strided and transposed, with awkward numbers."""
    fmt, x, seed, first = case
    assert wrong(x, fmt, torch.tensor([seed, first])) == []


@pytest.mark.slow
@LONG
@given(cases())
def test_the_whole_grammar_at_length(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    assert wrong(x, fmt, torch.tensor([seed, first])) == []


@pytest.mark.parametrize(
    "fmt",
    ["mxfp6", "nvfp4", "int4:group16:e8m0/ceil:asym", "binary:group16:e4m3", "int2:group32:fp32"],
)
def test_rows_that_fill_words(fmt: str) -> None:
    """Codes are packed as they are written; a block that is not finite holds the largest number."""
    x = torch.randn(3, 64)
    x[1, 3], x[1, 4], x[2, 40] = 1e4, torch.nan, -torch.inf
    assert wrong(x, fmt) == []


@pytest.mark.parametrize("kind", ["e8m0/ceil", "e8m0/nearest", "pow2/tosa"])
def test_scales_of_subnormal_numbers(kind: str) -> None:
    x = torch.tensor([1, 2, 3, 5, 255, 257, 2**22, 2**23 - 1], dtype=torch.int32)
    x = torch.cat([x, torch.arange(2**23, 2**28, 2**23 + 2**21, dtype=torch.int32)])
    for element in ("int8", "log4"):
        assert wrong(x.view(torch.float32)[:, None], f"{element}:token:{kind}") == [], element


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "e2m1:token:e4m3", "uint4:channel0:fp16:asym"])
def test_blocks_larger_than_a_program(fmt: str) -> None:
    """Extremes of their parts are merged; the last part is shorter."""
    x = torch.randn(2, 33_001)
    x[1, 33_000] = 9
    assert wrong(x, fmt) == []


@pytest.fixture
def settings_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles as small as they are there, so that tensors take several programs."""
    monkeypatch.setattr(tuning(), "interpreting", lambda: False)
    plan = sys.modules["blockscale.kernels.cuda.primitives.launch"].plan
    plan.cache_clear()
    yield
    plan.cache_clear()


def tuning() -> ModuleType:
    """Of the kernels, which may be imported only once the environment is set."""
    assert registry.unavailable("cuda") is None
    return sys.modules["blockscale.kernels.cuda.primitives.tuning"]


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize(
    "fmt", ["mxfp4", "int6:group12:fp32", "e4m3:tensor:fp32", "int8:group16@0:fp32:stochastic"]
)
def test_several_programs(fmt: str) -> None:
    assert wrong(torch.randn(45, 192), fmt) == []


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("given", [False, True])
def test_every_size_of_block_has_a_setting(given: bool) -> None:
    """A block as large as a program may hold has the most warps; larger ones take other ways."""
    view = sys.modules["blockscale.kernels.cuda.primitives.view"]
    for size in (*range(1, 70), *(2**k + d for k in range(7, 18) for d in (-1, 0, 1))):
        for shape in (view.Layout(1, 7, 2 * size, 1, size), view.Layout(1, 2 * size, 9, size, 1)):
            for merged in (False, True):
                chosen = tuning().setting(shape, given=given, merged=merged)
                found = view.view(shape, chosen.elements, whole=not given, unit=chosen.unit)
                if found is None:
                    assert not given and size > 2**15
                    continue
                tile = found.tile
                assert tile.rows * tile.columns <= 2**15
                assert tile.rows * tile.columns * found.programs >= 7 * 2 * size


@pytest.mark.parametrize("fmt", ["int8:channel-1:fp32", "int8:channel1:e8m0/ceil:asym"])
def test_blocks_across_many_rows(fmt: str) -> None:
    assert wrong(torch.randn(3, 20, 30), fmt) == []
    assert wrong(torch.randn(700, 60).t(), fmt) == []


def midpoints(fmt: str) -> Tensor:
    """Values of the format's element, what lies halfway, and one float32 to each side."""
    element = parse(fmt).element
    patterns = torch.arange(2**element.bits, dtype=torch.uint8)
    values = element.decode(element.from_bits(patterns)).double()
    values = values[values.isfinite()].unique()
    x = torch.cat([values, (values[1:] + values[:-1]) / 2, values[-1:] * 1.25, values[:1] * 1.25])
    ends = torch.tensor([math.inf, -math.inf])
    x = torch.cat([x.float(), x.float().nextafter(ends[0]), x.float().nextafter(ends[1]), ends])
    return torch.cat([x, torch.tensor([0.0, -0.0, math.nan, 2.0**-149, -(2.0**-149), 3e38])])


@pytest.mark.parametrize("fmt", ["int4", "e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "log4", "uint2"])
def test_every_midpoint(fmt: str) -> None:
    for rounding in ("", ":nearest_away", ":stochastic"):
        x, one = midpoints(f"{fmt}:tensor:fp32"), QParams(torch.ones(1))
        assert wrong(x, f"{fmt}:tensor:fp32{rounding}", given=one) == [], rounding


@pytest.mark.parametrize("scale", [3.0, -2.0, 0.0, 2.0**-149, 3e38, math.inf, math.nan])
def test_given_scales(scale: float) -> None:
    x = torch.cat([torch.randn(50), midpoints("e2m1:tensor:fp32")])
    for under in ("int8", "e2m1", "e4m3:recip", "binary"):
        element, _, option = under.partition(":")
        fmt = ":".join([element, "tensor", "fp32", *filter(None, [option])])
        assert wrong(x, fmt, given=QParams(torch.tensor([scale]))) == [], fmt


@pytest.mark.parametrize("byte", [0, 1, 254, 255])
def test_given_bytes(byte: int) -> None:
    """Also integers whose step is subnormal, so that its inverse takes two factors."""
    x = midpoints("e2m1:tensor:fp32") * torch.tensor([[1.0], [2.0**-130]])
    for element in ("int16", "e3m2", "log8"):
        one = QParams(torch.tensor([[byte]], dtype=torch.uint8))
        assert wrong(x, f"{element}:tensor:e8m0/floor", given=one) == [], element


@pytest.mark.parametrize("seed", [(-1, 1), (2**32, 2), (7, 2**34 - 1)], ids=str)
def test_random_numbers(seed: tuple[int, int]) -> None:
    for fmt in ("int8:group20:fp32:stochastic", "e2m1:group7:e8m0/floor:stochastic"):
        x = torch.randn(2, 20)
        assert wrong(x, fmt, torch.tensor(seed)) == []
        assert wrong(x, fmt, torch.tensor(seed[0])) == []


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (), (1,)], ids=str)
def test_shapes_with_little_in_them(shape: tuple[int, ...]) -> None:
    for fmt in ("int4:tensor:fp32", "binary:tensor:fp32", "e2m1:tensor:e4m3"):
        assert wrong(torch.ones(shape), fmt) == [], fmt


def test_strides_of_values_follow_the_input() -> None:
    for x in (
        torch.randn(6, 40).t(),
        torch.randn(2, 8, 4).permute(2, 0, 1),
        torch.randn(8, 9)[::2],
    ):
        assert wrong(x, "int4:group4:fp32") == []


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(4, 32, device=DEVICE)
    scale = torch.ones(4, 1, device=DEVICE)
    with bs.use("cuda"):
        with pytest.raises(TypeError, match="found float64"):
            P.choose_qparams(x.double(), "int8:token:fp32")
        with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(4, 1\)"):
            P.quantize(x, Quantizer(scale[:3], None, None, "int8:token:fp32", None))
        with pytest.raises(ValueError, match="expected a scale, a zero point for blocks"):
            P.quantize(x, Quantizer(scale, None, None, "uint8:token:fp32:asym", None))
        with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", None))
        with pytest.raises(ValueError, match="a seed is int64 of shape"):
            seed = torch.zeros(3, dtype=torch.int64)
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", seed))
        with pytest.raises(ValueError, match=r"are packed as torch\.uint8 of shape"):
            codes = torch.zeros(4, 9, dtype=torch.uint8, device=DEVICE)
            P.dequantize(Operand(codes, scale, None, None, "int4:token:fp32", 32), torch.float32)
        with pytest.raises(ValueError, match="expected a gradient of shape"):
            P.straight_through(x[:2], x, Quantizer(None, None, None, "int8:token:fp32"))
        with pytest.raises(ValueError, match="block 'tile2x2' needs dimension -2"):
            P.fake_quantize(x[0], Quantizer(None, None, None, "int8:tile2x2:fp32", None))
