# SPDX-License-Identifier: BSD-3-Clause
"""Power-of-two scales: peers' golden bytes, and each rule's meaning without its threshold."""

import itertools

import numpy as np
import pytest
import torch

from blockscale.core import reference as R
from blockscale.core.arithmetic.precision import exponent, mantissa, pow2
from blockscale.core.parse import parse
from tests.support import exact
from tests.support.oracle import Oracle

ORDER = ("floor", "rceil", "ceil", "even", "tosa")
ELEMENTS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8", "int4", "log4", "uint8", "ternary")
FLT_MAX = exact.FLT_MAX


def succ(v: float) -> float:
    return float(np.nextafter(np.float32(v), np.float32(np.inf)))


def pred(v: float) -> float:
    return float(np.nextafter(np.float32(v), np.float32(-np.inf)))


# The stored byte of a block of 32 in which only amax is not zero. Run at torchao 36027d8 for the
# first four rules, computed in rationals for the last (TOSA 1.1, calc_block_scale).
GOLDEN = [
    (0.0, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
    (2.0**-149, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
    (2.0**-127, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
    (2.0**-126, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
    (pred(1), (118, 119, 119, 119, 119), (124, 125, 125, 125, 125)),
    (1.0, (119, 119, 119, 119, 119), (125, 125, 125, 125, 125)),
    (1.5, (119, 119, 120, 119, 119), (125, 125, 126, 125, 125)),
    (succ(1.5), (119, 119, 120, 119, 119), (125, 126, 126, 125, 125)),
    (1.75, (119, 119, 120, 119, 119), (125, 126, 126, 126, 126)),
    (succ(1.75), (119, 120, 120, 119, 119), (125, 126, 126, 126, 126)),
    (1.8125, (119, 120, 120, 119, 119), (125, 126, 126, 126, 126)),
    (succ(1.8125), (119, 120, 120, 119, 120), (125, 126, 126, 126, 126)),
    (1.9375, (119, 120, 120, 120, 120), (125, 126, 126, 126, 126)),
    (pred(2), (119, 120, 120, 120, 120), (125, 126, 126, 126, 126)),
    (448.0, (127, 127, 128, 127, 127), (133, 134, 134, 134, 134)),
    (464.0, (127, 128, 128, 127, 127), (133, 134, 134, 134, 134)),
    (6.0, (121, 121, 122, 121, 121), (127, 127, 128, 127, 127)),
    (7.0, (121, 121, 122, 121, 121), (127, 128, 128, 128, 128)),
    (3.3e38, (246, 247, 247, 255, 247), (252, 253, 253, 255, 253)),
    (FLT_MAX, (246, 247, 247, 255, 247), (252, 253, 253, 255, 253)),
    (float("inf"), (255, 255, 255, 255, 255), (255, 255, 255, 255, 255)),
]
# torchao's EVEN rounds these finite values up to infinity and so to NaN; ours is the rule's byte.
TORCHAO_QUIRK = {"e4m3": 247, "e2m1": 253}


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("rule", ORDER)
def test_golden_bytes(rule: str, column: int) -> None:
    element = ("e4m3", "e2m1")[column - 1]
    for row in GOLDEN:
        x = torch.zeros(1, 32)
        x[0, 17] = -row[0]
        expected = row[column][ORDER.index(rule)]
        if rule == "even" and row[0] in (3.3e38, FLT_MAX):
            assert expected == 255
            expected = TORCHAO_QUIRK[element]
        scale = R.choose_qparams(x, parse(f"{element}:group32:e8m0/{rule}")).scale
        assert scale.tolist() == [[expected]], (row[0], element)


def meaning(a: np.ndarray, rule: str, element: str) -> np.ndarray:
    """The exponent n that a rule means, for a in [1, 2) float64: a search, no threshold."""
    oracle = Oracle(f"{element}:tensor:e8m0")
    top, mbits = float(oracle.levels), oracle.element.mbits
    emax = exact.exponent(oracle.levels)
    candidates = range(-emax - 1, -emax + 3)  # ascending; powers of two scale float64 exactly

    def smallest(holds) -> np.ndarray:
        assert not holds(2.0 ** candidates[0]).any()
        assert holds(2.0 ** candidates[-1]).all()
        return candidates[0] + sum((~holds(2.0**n)).astype(np.int64) for n in candidates)

    if rule == "floor":  # the largest power of two in a, over the largest in the element
        return smallest(lambda s: a < 2 * s * 2.0**emax)
    if rule == "ceil":  # likewise, but the smallest above a
        return smallest(lambda s: a <= s * 2.0**emax)
    if rule == "rceil":  # a / top, rounded up to a power of two
        return smallest(lambda s: a <= s * top)
    if rule == "even":  # round a to the element's mantissa, halves up; then floor
        rounded = np.floor(a * 2**mbits + 0.5) / 2**mbits
        return smallest(lambda s: rounded < 2 * s * 2.0**emax)
    if rule == "tosa":  # the smallest scale with which a, rounded, is not above top
        ulp = 2.0 ** (emax - mbits)
        return smallest(lambda s: np.rint(a / s / ulp) <= top / ulp)
    quotient = a.astype(np.float32) / np.float32(top)  # nearest: log2 of this, rounded
    m, e = np.frexp(quotient)
    significand = (m * 2**24).astype(np.int64)  # in [2^23, 2^24); m > sqrt(2) is m * m > 2
    return e.astype(np.int64) - 1 + (significand * significand > 2 * 2**46)


def check_mantissas(mantissas: np.ndarray, rule: str, element: str) -> None:
    a = (mantissas + 2**23).astype(np.float64) / 2**23
    fmt = parse(f"{element}:token:e8m0/{rule}")
    high = torch.from_numpy(a.astype(np.float32))[:, None]
    byte = R.qparams_from_range(torch.zeros_like(high), high, high.isnan(), fmt).scale[:, 0].numpy()
    fraction_bits = Oracle(f"{element}:tensor:e8m0").fraction_bits
    np.testing.assert_array_equal(byte, meaning(a, rule, element) + fraction_bits + 127)


def telling_mantissas() -> np.ndarray:
    """Within 3 of every value of 9 mantissa bits (all thresholds of 3.4) and of sqrt(2); a comb."""
    centres = np.concatenate(
        [np.arange(0, 2**23 + 1, 2**14), [0x3504F3], np.arange(0, 2**23, 9973)]
    )
    near = (centres[:, None] + np.arange(-3, 4)).ravel()
    return np.unique(near[(near >= 0) & (near < 2**23)])


@pytest.mark.parametrize("rule", exact.RULES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_what_a_rule_means(element: str, rule: str) -> None:
    check_mantissas(telling_mantissas(), rule, element)


@pytest.mark.slow
@pytest.mark.parametrize("rule", exact.RULES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_what_a_rule_means_for_every_mantissa(element: str, rule: str) -> None:
    check_mantissas(np.arange(2**23), rule, element)


def every_exponent() -> list[float]:
    """Each binade of float32, subnormals too, at mantissas beside the thresholds."""
    steps = [0, 1, 0x3504F3, 0x3504F4, 3 << 21, (3 << 21) + 1, 13 << 19, (13 << 19) + 1, 2**23 - 1]
    normal = [(2**23 + m) * 2.0 ** (e - 23) for e in range(-126, 128) for m in steps]
    subnormal = [(2**k + d) * 2.0**-149 for k in range(23) for d in (-1, 0, 1)]
    return sorted({0.0, *subnormal, *normal})


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("kind", ["e8m0", "pow2"])
@pytest.mark.parametrize(
    ("rule", "element"), list(itertools.product(exact.RULES, ["e4m3", "int8"]))
)
def test_both_ends_clamp(kind: str, rule: str, element: str) -> None:
    spelling = f"{element}:token:{kind}/{rule}"
    values = every_exponent()
    qparams = R.choose_qparams(torch.tensor(values)[:, None], parse(spelling))
    expected = [Oracle(spelling).stored([v]) for v in values]
    assert qparams.scale[:, 0].tolist() == expected
    assert min(expected) == (0 if kind == "e8m0" else 2.0**-126)
    step = R.step_of(qparams, parse(spelling))
    assert bool((step > 0).all())  # a step of zero would make NaN of zero


@pytest.mark.parametrize("levels", ["uint1", "int2", "binary", "log4"])
def test_a_power_above_the_largest_byte(levels: str) -> None:
    # amax / 1 rounded up is 2^128, which neither storage has: 254 is 2^127
    x = torch.tensor([[FLT_MAX]])
    assert R.choose_qparams(x, parse(f"{levels}:token:e8m0/ceil")).scale.item() == 254
    assert R.choose_qparams(x, parse(f"{levels}:token:pow2/ceil")).scale.item() == 2.0**127


def test_mxint8_has_six_fraction_bits() -> None:
    # OCP MX 1.0, 5.3.4: the element is k / 64, so 1.99 keeps the byte of 2^0 and a step of 2^-6
    fmt = parse("mxint8")
    x = torch.zeros(32)
    x[:3] = torch.tensor([1.984375, -1.984375, 1.0])
    qparams = R.choose_qparams(x, fmt)
    codes = R.quantize(x, qparams, fmt)
    assert qparams.scale.tolist() == [127]
    assert R.step_of(qparams, fmt).tolist() == [2.0 ** (127 - 133)]
    assert codes[:3].tolist() == [127, -127, 64]
    assert R.dequantize(codes, qparams, fmt, torch.float32).tolist() == x.tolist()


IMPLICIT = {"int2": 0, "int4": 2, "int8": 6, "int16": 14, "uint1": 0, "uint8": 7, "uint16": 15}
IMPLICIT |= {"ternary": 0, "binary": 0, "e4m3": 0, "log8": 0}


@pytest.mark.parametrize(("element", "f"), IMPLICIT.items())
def test_the_implicit_exponent(element: str, f: int) -> None:
    """Under e8m0 byte b is a step of 2^(b - 127 - f), exact down to subnormals; pow2 has no f."""
    fmt = parse(f"{element}:token:e8m0")
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    step = R.step_of(R.QParams(every), fmt)[:, 0].double().tolist()
    assert step[:255] == [2.0 ** (b - 127 - f) for b in range(255)]
    assert np.isnan(step[255])
    assert R.step_of(R.QParams(torch.tensor([0.25])), parse(f"{element}:tensor:pow2/floor")) == 0.25


def test_exponents_come_from_bits() -> None:
    values = every_exponent()[1:]
    x = torch.tensor([*values, *(-v for v in values)])
    assert exponent(x).tolist() == [exact.exponent(abs(v)) for v in x.double().tolist()]
    assert mantissa(x).tolist() == [int(exact.mant(abs(v))) for v in x.double().tolist()]
    n = torch.arange(-149, 128, dtype=torch.int32)
    assert pow2(n).double().tolist() == [2.0**k for k in range(-149, 128)]
