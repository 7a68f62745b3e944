# SPDX-License-Identifier: BSD-3-Clause
"""Rounding scales to powers of two, against exact rationals; and formats under such scales."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import blockscale as bs
from blockscale.calibration import observers
from blockscale.core import reference
from blockscale.core.integer_scales import round_to_power_of_2, with_power_of_2_scale
from blockscale.core.parse import parse
from blockscale.core.scale import PowerOfTwo
from tests.support.exact import FLT_MAX
from tests.support.some import crossed

FREE = torch.export.Dim.DYNAMIC
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LIMITS = dict.fromkeys(DTYPES, (-126, 127)) | {torch.float16: (-24, 15)}


def nearest(value: float, dtype: torch.dtype = torch.float64) -> Fraction:
    """The oracle: the n with 2^(n - 1/2) < value < 2^(n + 1/2), in rationals, within the limits."""
    low, high = LIMITS[dtype]
    if value == 0 or math.isinf(value):
        return Fraction(2) ** (high if value else low)
    square = Fraction(value) ** 2
    n = math.frexp(value)[1]
    while not Fraction(2) ** (2 * n - 1) < square < Fraction(2) ** (2 * n + 1):
        n -= 1
    return Fraction(2) ** max(low, min(n, high))


def neighbours(x: Tensor, count: int = 3) -> Tensor:
    """x and the `count` numbers of its dtype on each side."""
    found, up, down = [x], x, x
    for _ in range(count):
        up, down = up.nextafter(up + math.inf), down.nextafter(down - math.inf)
        found += [up, down]
    return torch.cat(found)


def boundaries(dtype: torch.dtype) -> Tensor:
    """Around every power of two and every root between two, and what has no exponent."""
    info = torch.finfo(dtype)
    step = 1 if dtype == torch.float16 else 7
    n = torch.arange(math.floor(math.log2(info.smallest_normal)) + 1, 127, step)
    n = n[n.double().exp2() < info.max / 2]
    powers = torch.cat([n.double().exp2(), (n.double() + 0.5).exp2()]).to(dtype)
    if dtype in (torch.float32, torch.float64):
        powers = neighbours(powers)
    special = [0.0, info.smallest_normal, info.smallest_normal / 2, info.max, math.inf]
    return torch.cat([powers, torch.tensor(special, dtype=dtype)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(dtype: torch.dtype) -> None:
    x = boundaries(dtype)
    y = round_to_power_of_2(x)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert [Fraction(v) for v in y.tolist()] == [nearest(v, dtype) for v in x.tolist()]


def test_every_bfloat16_and_float16() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(0x8000, dtype=torch.int32).to(torch.int16).view(dtype)
        x = x[~x.isnan()]
        for value, found in zip(
            x.tolist()[::11], round_to_power_of_2(x)[::11].tolist(), strict=True
        ):
            assert Fraction(found) == nearest(value, dtype)


@given(st.floats(min_value=0, allow_nan=False))
def test_python_floats(value: float) -> None:
    found = round_to_power_of_2(value)
    assert type(found) is float
    assert Fraction(found) == nearest(value)


def test_the_root_of_two_is_between_its_neighbours() -> None:
    """√2 = 1.41421356237309504880…: the doubles beside it, and the floats beside it."""
    below, above = math.nextafter(2**0.5, 0), 2**0.5
    assert Fraction(below) ** 2 < 2 < Fraction(above) ** 2
    assert (round_to_power_of_2(below), round_to_power_of_2(above)) == (1.0, 2.0)
    floats = torch.tensor([0x3FB504F3, 0x3FB504F4], dtype=torch.int32).view(torch.float32)
    assert Fraction(floats[0].item()) ** 2 < 2 < Fraction(floats[1].item()) ** 2
    assert round_to_power_of_2(floats).tolist() == [1.0, 2.0]
    assert round_to_power_of_2(floats.double()).tolist() == [1.0, 2.0]  # the same rule


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 2.0**-126), (0.0, 2.0**-126), (-0.0, 2.0**-126), (5e-324, 2.0**-126),
        (3, 4.0), (-3, -4.0), (2**3000, 2.0**127), (-(2**3000), -(2.0**127)), (1e300, 2.0**127),
        (math.inf, 2.0**127), (0.3, 0.25),
        (-0.5, -0.5), (-5e-324, -(2.0**-126)), (-math.inf, -(2.0**127)),
    ],
)  # fmt: skip
def test_scalars(value: float, expected: float) -> None:
    found = round_to_power_of_2(value)
    assert type(found) is float
    assert found == expected


def test_numpy_scalars_keep_their_type() -> None:
    for kind, smallest in (
        (np.float16, 2.0**-24),
        (np.float32, 2.0**-126),
        (np.float64, 2.0**-126),
    ):
        for value, expected in ((0.7, 0.5), (0.0, smallest), (100.0, 128.0)):
            found = round_to_power_of_2(kind(value))
            assert type(found) is kind
            assert found == expected


def test_nan_stays() -> None:
    assert math.isnan(round_to_power_of_2(math.nan))
    for dtype in DTYPES:
        found = round_to_power_of_2(torch.tensor([math.nan, 3.0], dtype=dtype))
        assert found.isnan().tolist() == [True, False]


def test_shapes_and_gradients() -> None:
    for shape in ((), (0,), (3,), (2, 1, 2)):
        x = torch.rand(shape, requires_grad=True)
        y = round_to_power_of_2(x)
        assert y.shape == x.shape
        assert not y.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_scales_keep_their_sign(dtype: torch.dtype) -> None:
    """What a magnitude becomes, with a minus; zeros of both signs count as 0, which is positive."""
    x = boundaries(dtype)
    expected = torch.where(x == 0, 1.0, -1.0).to(dtype) * round_to_power_of_2(x)
    assert torch.equal(round_to_power_of_2(-x), expected)
    assert (round_to_power_of_2(-x[x > 0]) < 0).all()
    for value in x.tolist()[::3]:
        found = round_to_power_of_2(-value)
        assert Fraction(found) == (-1 if value else 1) * nearest(value)


def test_negative_numpy_scalars() -> None:
    for kind in (np.float16, np.float32, np.float64):
        found = round_to_power_of_2(kind(-0.7))
        assert type(found) is kind
        assert found == -0.5


def test_it_looks_at_no_value() -> None:
    """So that it can be exported: with fake tensors a look at a value is an error."""
    with FakeTensorMode():
        for dtype in DTYPES:
            assert round_to_power_of_2(torch.empty(3, 2, dtype=dtype)).shape == (3, 2)


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strict", [True, False])
def test_it_exports(dtype: torch.dtype, strict: bool) -> None:
    class Rounded(torch.nn.Module):
        def forward(self, scale: Tensor) -> Tensor:
            return round_to_power_of_2(scale)

    x = torch.cat([boundaries(dtype), -boundaries(dtype)])
    program = torch.export.export(Rounded(), (x[:4],), strict=strict, dynamic_shapes=[{0: FREE}])
    assert torch.equal(program.module()(x), round_to_power_of_2(x))
    assert program.module()(x.new_tensor([math.nan, 1.0])).isnan().tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", crossed(4, DTYPES))
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_compiles(dtype: torch.dtype, backend: str) -> None:
    """Without a break in the graph, and with the same bits from compiled C++."""
    torch._dynamo.reset()
    compiled = torch.compile(round_to_power_of_2, fullgraph=True, backend=backend)
    x = torch.cat([boundaries(dtype), -boundaries(dtype)])
    assert torch.equal(compiled(x), round_to_power_of_2(x))


@pytest.mark.slow
def test_numbers_compile_into_constants() -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="eager")
    def scaled(x: Tensor, scale: float) -> Tensor:
        return x * round_to_power_of_2(scale)

    for scale in (0.3, -5.0, 0.0, 3, -math.inf, 1e-40):
        assert scaled(torch.ones(1), scale).item() == round_to_power_of_2(scale)


def test_what_is_no_scale() -> None:
    for wrong in (True, "1", None, 1j, [1.0]):
        with pytest.raises(TypeError, match="expected a float or a tensor of floats"):
            round_to_power_of_2(wrong)
    for dtype in (torch.int32, torch.bool, torch.float8_e4m3fn):
        with pytest.raises(TypeError, match="expected float32, float64, bfloat16 or float16"):
            round_to_power_of_2(torch.ones(2).to(dtype))


def test_it_is_the_rule_of_the_formats() -> None:
    """The scales of pow2/nearest are fp32's, rounded; also at the edges."""
    tiny = torch.tensor([[0.0], [1e-44], [1e-38], [3e-38], [127e30], [3.4e38]])
    x = torch.cat([torch.randn(200, 1) * torch.randint(-120, 120, (200, 1)).float().exp2(), tiny])
    x = x[x.isfinite().all(1)]
    for element in ("int8", "uint8", "int4", "e4m3", "ternary"):
        plain = bs.choose_qparams(x, f"{element}:token:fp32")[0]
        found = bs.choose_qparams(x, f"{element}:token:pow2/nearest")[0]
        within = plain > 2.0**-126  # where fp32 does not clamp the quotient first
        assert torch.equal(found[within], round_to_power_of_2(plain)[within])


def test_siblings_of_every_format() -> None:
    for fmt in (*bs.formats().values(), bs.parse("int8:tensor:fp32:half:recip:up")):
        sibling = with_power_of_2_scale(fmt)
        assert isinstance(sibling.scale, PowerOfTwo)
        assert bs.parse(str(sibling)) == sibling == with_power_of_2_scale(sibling)
        same = ("element", "block", "asym", "rounding", "wide")
        assert all(getattr(sibling, part) == getattr(fmt, part) for part in same)
        if isinstance(fmt.scale, PowerOfTwo):
            assert sibling == fmt


def test_siblings_by_name() -> None:
    for fmt, expected in (
        ("int8:channel0:fp32", "int8:channel0:pow2/nearest"),
        ("int8:tensor:fp32:half:recip", "int8:tensor:pow2/nearest:half"),
        ("uint8:tensor:bf16:asym:recip", "uint8:tensor:pow2/nearest:asym"),
        ("e2m1:group16:e4m3", "e2m1:group16:pow2/nearest"),
        ("int8:group64:e8m0/floor", "int8:group64:e8m0/floor"),
    ):
        assert str(with_power_of_2_scale(bs.parse(fmt))) == expected


def half_even(x: Fraction) -> int:
    floor = x.numerator // x.denominator
    rest = x - floor
    return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))


@pytest.mark.some(8)
@pytest.mark.parametrize("name", [n for n in observers.names() if n not in ("mean", "adaptive")])
@pytest.mark.parametrize(
    "fmt",
    [
        "int8:tensor:pow2/nearest",
        "uint8:tensor:pow2/nearest:asym",
        "int8:channel-1:pow2/nearest",
        "int4:channel-1:pow2/nearest:asym",
    ],
)
def test_every_observer(name: str, fmt: str) -> None:
    """Its range gives a power of two, and the zero point is chosen from that one."""
    form = bs.parse(fmt)
    observer = observers.make(name, form)
    for _ in range(3):
        observer(torch.randn(40, 3) * torch.tensor([0.1, 3.0, 50.0]) + 0.5)
    low, high, _ = observer.range()
    scale, _, zero_point = observer.qparams()[:3]
    check(form, low, high, scale, zero_point)


@pytest.mark.slow
def test_the_adaptive_observer() -> None:
    form = bs.parse("uint8:tensor:pow2/nearest:asym")
    observer = observers.make("adaptive", form)
    for _ in range(3):
        observer(torch.randn(40, 3) + 0.5)
    scale, _, zero_point = observer.qparams()[:3]
    check(form, *observer.range()[:2], scale, zero_point)


def check(form: bs.Format, low: Tensor, high: Tensor, scale: Tensor, zero_point: Tensor | None):
    assert scale.dtype == torch.float32
    a = reference.numerator(low, high, form)
    quotient = a / torch.tensor(form.levels.value)
    assert [Fraction(s) for s in scale.flatten().tolist()] == [
        nearest(v, torch.float32) for v in quotient.flatten().tolist()
    ]
    if zero_point is not None:
        lowest, highest = form.element.limits(True)
        expected = [
            max(lowest, min(highest, lowest - half_even(Fraction(lo) / Fraction(s))))
            for lo, s in zip(low.flatten().tolist(), scale.flatten().tolist(), strict=True)
        ]
        assert zero_point.flatten().tolist() == expected


@pytest.mark.parametrize("name", ["min_max", "moving_average", "percentile"])
def test_float_scales_are_what_they_were(name: str) -> None:
    """The default: a power of two changes the stored scale alone, not what an observer sees."""
    x = torch.randn(64, 8)
    plain, rounded = (
        observers.make(name, f"int8:tensor:{scale}") for scale in ("fp32", "pow2/nearest")
    )
    plain(x), rounded(x)
    for a, b in zip(plain.range(), rounded.range(), strict=True):
        assert torch.equal(a, b)
    low, high, _ = plain.range()
    quotient = torch.maximum(-low, high) / torch.tensor(127.0)
    assert torch.equal(plain.qparams().scale, quotient)
    assert torch.equal(rounded.qparams().scale, round_to_power_of_2(quotient))


# Zero points, against exact rationals (docs/numerics.md, 3.6).

FORMATS = ["uint8:token:fp32:asym", "int8:token:fp32:asym", "uint1:token:fp32:asym",
           "uint16:token:fp32:asym", "int2:token:fp32:asym"]  # fmt: skip


@pytest.mark.parametrize("spelling", FORMATS)
def test_low_gets_the_lowest_code(spelling: str) -> None:
    """Ties and their neighbours, ends, and ranges that are not reached."""
    fmt = parse(spelling)
    bits, signed = fmt.element.bits, fmt.element.signed
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    halves = torch.arange(0, 2 * 2 ** min(bits, 9) + 8) / 2
    low = -torch.cat([halves, torch.nextafter(halves, torch.tensor(math.inf))])
    step = torch.ones_like(low)
    found = reference.choose_zero_point(low, step, fmt)
    expected = [
        max(lowest, min(highest, lowest - round(Fraction(value)))) for value in low.tolist()
    ]
    assert found.dtype == torch.int32
    assert found.tolist() == expected


def test_any_step() -> None:
    low, step = -torch.rand(300) * 100, torch.rand(300) + 0.01
    found = reference.choose_zero_point(low, step, parse("uint8:token:fp32:asym"))
    quotients = (low / step).tolist()  # rounded once, by IEEE division
    assert found.tolist() == [min(255, -round(Fraction(q))) for q in quotients]


def test_blocks_without_a_range_and_poisoned_ones() -> None:
    low = torch.tensor([0.0, -FLT_MAX, -1.0, -1.0])
    step = torch.tensor([2.0**-126, 1.0, math.nan, 0.0])
    fmt = parse("uint8:token:fp32:asym")
    assert reference.choose_zero_point(low, step, fmt).tolist() == [0, 255, 0, 255]
    signed = parse("int8:token:fp32:asym")
    assert reference.choose_zero_point(low, step, signed).tolist() == [-128, 127, 0, 127]


def test_each_lies_over_its_block() -> None:
    fmt = parse("uint4:group2:fp32:asym")
    zero = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    spread = reference.expand_zero_point(zero, fmt, torch.Size([2, 3]))
    assert spread.dtype == torch.float32
    assert spread.tolist() == [[1, 1, 2], [3, 3, 4]]
    assert reference.expand_zero_point(None, fmt, torch.Size([2, 3])) is None
