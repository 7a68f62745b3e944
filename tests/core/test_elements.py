"""Every code, bfloat16 and rounding boundary of elements, against ml_dtypes and rationals."""

import math
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from blockscale.core.elements import read_element
from blockscale.core.rounding import DETERMINISTIC
from tests.exact import FLT_MAX
from tests.oracle_elements import Minifloat, element_of

# ml_dtypes' plain float8_e4m3 and float8_e3m4 keep an infinity and NaN as IEEE 754 does.
PEERS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3r8": ml_dtypes.float8_e4m3,
    "e3m4r16": ml_dtypes.float8_e3m4,
}
MINIFLOATS = [f"e{x}m{y}" for x in range(1, 8) for y in range(7) if 3 <= 1 + x + y <= 8]
RESERVED = ["e4m3r0", "e4m3r2", "e5m2r0", "e5m2r1", "e2m1r1", "e3m0r1", "e3m4r16", "e1m6r3"]
LOGS = [f"log{b}" for b in range(2, 9)]
INTEGERS = [f"int{b}" for b in range(2, 17)] + [f"uint{b}" for b in range(1, 17)]
EVERY = [*MINIFLOATS, *RESERVED, *LOGS, *INTEGERS, "ternary", "binary"]
BOUNDARY = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m4", "e3m4r16", "e4m3r0", "e7m0"]
BOUNDARY += ["e6m1", "e1m3", *LOGS, "int2", "int4", "int8", "int12", "int16", "uint1", "uint4"]
BOUNDARY += ["uint8", "uint16", "ternary", "binary"]


def codes_of(name: str, wide: bool = True) -> list[int]:
    """Every code as the user sees it."""
    if name == "binary":
        return [-1, 1]
    if name == "ternary":
        return [-1, 0, 1]
    element = element_of(name, {"full"} if wide and name.startswith("int") else set())
    if isinstance(element, Minifloat):
        return list(range(2**element.bits))
    return list(range(element.qmin, element.qmax + 1))


def encode(name: str, y: Tensor, mode: str = "nearest_even", wide: bool = False) -> Tensor:
    return read_element(name).encode(y, DETERMINISTIC[mode], None, wide)


def key(value: float) -> object:
    """-0 is not +0, NaN is NaN."""
    return "nan" if math.isnan(value) else (value, math.copysign(1, value))


def grid(name: str) -> list[float]:
    """Non-negative values; of 16-bit integers those around powers of two and the ends."""
    element = element_of(name)
    if isinstance(element, Minifloat):
        return [float(element.magnitude(c)) for c in range(element.last + 1)]
    top = 1 if name == "binary" else element.qmax
    near = {2**k + d for k in range(top.bit_length() + 1) for d in (-2, -1, 0, 1, 2)} | {0}
    return sorted(float(v) for v in near if 0 <= v <= top + 1)


def boundaries(name: str) -> Tensor:
    """Where rounding can go wrong: the grid, midpoints, one float32 beside each, the ends."""
    values = grid(name)
    values += [(a + b) / 2 for a, b in pairwise(values)]
    values += [values[-1] * 2, max(grid(name)) * 1.0625, 0.75, FLT_MAX, 2.0**-126]
    near = np.array([v for v in values if v < 2.0**128], np.float32)
    with np.errstate(over="ignore"):  # what follows FLT_MAX is infinity
        sides = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    near = np.concatenate([near, *sides, np.float32([0.0, 2.0**-149, np.inf])])
    return torch.from_numpy(np.concatenate([near, -near, np.float32([np.nan])]))


def every_bfloat16() -> Tensor:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return x[x.isfinite()]


def test_every_bfloat16_is_all_of_them() -> None:
    assert every_bfloat16().numel() == 2**16 - 2**8  # exponent field 255 of both signs is out


@pytest.mark.parametrize("name", PEERS)
def test_every_code_means_what_ml_dtypes_says(name: str) -> None:
    codes = np.arange(2 ** read_element(name).bits, dtype=np.uint8)
    theirs = codes.view(PEERS[name]).astype(np.float32)
    if name != "e5m2":  # we read infinity only there
        theirs = np.where(np.isinf(theirs), np.nan, theirs)
    ours = read_element(name).decode(torch.from_numpy(codes)).numpy()
    np.testing.assert_array_equal(ours, theirs)
    number = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours)[number], np.signbit(theirs)[number])


@pytest.mark.parametrize("points", ["bfloat16", "boundaries"])
@pytest.mark.parametrize("name", PEERS)
def test_nearest_even_is_ml_dtypes_cast(name: str, points: str) -> None:
    y = every_bfloat16() if points == "bfloat16" else boundaries(name)
    y = y[~y.isnan()]
    top = float(ml_dtypes.finfo(PEERS[name]).max)
    # ml_dtypes overflows to NaN or infinity for 8 bits; ours saturates, in every mode.
    theirs = y.clamp(-top, top).numpy().astype(PEERS[name]).view(np.uint8)
    np.testing.assert_array_equal(encode(name, y).numpy(), theirs)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", BOUNDARY)
def test_boundaries_in_exact_rationals(name: str, mode: str) -> None:
    y, element = boundaries(name), element_of(name)
    expected = [element.encode(v, mode) for v in y.double().tolist()]
    assert encode(name, y, mode).tolist() == expected


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", BOUNDARY)
def test_mask_in_exact_rationals(name: str, mode: str) -> None:
    y, element = boundaries(name), element_of(name)
    expected = [math.isfinite(v) and element.holds(v, mode) for v in y.double().tolist()]
    assert read_element(name).in_range(y, DETERMINISTIC[mode], None, False).tolist() == expected


@pytest.mark.parametrize("name", EVERY)
def test_decode_in_exact_rationals(name: str) -> None:
    element, codes = read_element(name), codes_of(name)
    ours = element.decode(torch.tensor(codes).to(element.code_dtype))
    assert ours.dtype == torch.float32
    assert list(map(key, ours.tolist())) == [key(element_of(name).decode(c)) for c in codes]


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", EVERY)
def test_a_value_has_its_own_code(name: str, mode: str) -> None:
    element = read_element(name)
    codes = torch.tensor(codes_of(name)).to(element.code_dtype)
    values = element.decode(codes)
    codes = codes[values.isfinite()]
    again = element.encode(values[values.isfinite()], DETERMINISTIC[mode], None, True)
    assert again.dtype == element.code_dtype
    assert torch.equal(again, codes)


@pytest.mark.parametrize("name", EVERY)
def test_facts(name: str) -> None:
    ours, exact = read_element(name), element_of(name)
    positive = [v for v in map(exact.decode, codes_of(name)) if 0 < v < math.inf]
    assert (ours.name, ours.bits, ours.mbits) == (name, exact.bits, exact.mbits)
    assert (ours.max, ours.smallest) == (max(positive), min(positive))
    assert (ours.nan_code, ours.fraction_bits) == (exact.nan, exact.fraction_bits)
    assert ours.signed == (not name.startswith("uint"))
    normal = 2.0 ** (1 - exact.bias) if isinstance(exact, Minifloat) else 1.0
    assert ours.smallest_normal == normal


@pytest.mark.parametrize("name", [n for n in EVERY if n.startswith("e")])
def test_nan_saturation_and_sign_of_zero(name: str) -> None:
    element, exact = read_element(name), element_of(name)
    sign = 2 ** (element.bits - 1)
    y = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, FLT_MAX, -FLT_MAX, 0.0, -0.0])
    nan = exact.nan or 0
    expected = [nan, nan, exact.last, exact.last + sign, exact.last, exact.last + sign, 0, sign]
    for mode in DETERMINISTIC:
        assert encode(name, y, mode).tolist() == expected


SATURATED = {
    "int8": ((-127, 127), (-128, 127)),
    "int2": ((-1, 1), (-2, 1)),
    "int16": ((-32767, 32767), (-32768, 32767)),
    "uint8": ((0, 255), (0, 255)),
    "uint1": ((0, 1), (0, 1)),
    "ternary": ((-1, 1), (-1, 1)),
}


@pytest.mark.parametrize("name", SATURATED)
def test_integers_saturate_and_nan_is_zero(name: str) -> None:
    y = torch.tensor([-math.inf, -1e30, -(2.0**15) - 1, 2.0**17, math.inf, math.nan])
    for wide, (low, high) in zip((False, True), SATURATED[name], strict=True):
        assert encode(name, y, wide=wide).tolist() == [low, low, low, high, high, 0]


def test_binary_is_the_sign_and_zero_is_positive() -> None:
    y = torch.tensor([-math.inf, -1.0, -(2.0**-149), -0.0, 0.0, 2.0**-149, math.inf, math.nan])
    assert encode("binary", y).tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]


def test_a_zero_point_is_added_after_rounding() -> None:
    y = torch.tensor([0.5, 1.5, -0.5, math.nan, math.inf])
    odd = torch.tensor(3.0)
    codes = read_element("uint4").encode(y, DETERMINISTIC["nearest_even"], odd, True)
    assert codes.tolist() == [3, 5, 3, 3, 15]  # rounding 0.5 + 3 would give 4


@pytest.mark.parametrize(("name", "there"), [("e2m3r23", True), ("e2m3r24", False)])
def test_one_normal_number_must_remain(name: str, there: bool) -> None:
    """r23 leaves e2m3 the codes 0 ... 8; 8 is 1.0, the smallest normal number."""
    if there:
        assert read_element(name).max == 1.0
    else:
        with pytest.raises(ValueError, match=f"no element '{name}'"):
            read_element(name)
