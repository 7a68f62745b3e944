# SPDX-License-Identifier: BSD-3-Clause
"""A format as what shaders are made of: the parts that they choose, and their constants."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import FormatNumbers, lowered, supports_families
from blockscale.kernels.registry import ByFormats
from blockscale.kernels.webgpu.gpu.probe import INTEGERS, DeviceArithmetic, refusal
from blockscale.kernels.webgpu.gpu.shader import Constant, Roles, Signed

FAMILIES = ("integer", "minifloat", "binary", "codebook")  # of elements, that parts know
FEATURES = ("nd", "flat", "offset", "float_zero", "signed", "given", "inner")  # and of formats
STORAGE = {"fp32": 0, "fp16": 1, "bf16": 2}  # as bits/storage has it
Constants = tuple[tuple[str, Constant], ...]
_families = supports_families(FAMILIES, FEATURES)
NAN = 0x7FC00000
# roundings with parts code/approximate/…
_APPROXIMATE = {"nearest_even": "", "stochastic": "stochastic_"}
_TURNED = 0x01010101  # as element/codebook has it
_FAR = 24  # values beyond 2^24 or below 2^-24 times an ordinary step may not be normal


def _supports(formats: Sequence[Format]) -> bool:
    """Not offsets that are codes or have blocks of their own, nor offsets of scales; and only what
    the device computes right."""
    if not _families(formats) or any(_has_rare_offset(fmt) for fmt in formats):
        return False
    return all(refusal(operations(fmt)) is None for fmt in formats)


@cache
def operations(fmt: Format) -> tuple[str, ...]:
    """Those of probe.OPERATIONS that kernels for a format rely on."""
    roles = shader_of(fmt)[0]
    divides = roles.how != "shift" or roles.levels is not None or roles.rule == "float"
    sums = "sum of normal numbers" if "even" in roles.rounding or fmt.asym else ""
    quotient = "division by a reciprocal" if divides or roles.power == "nearest" else ""
    return (*INTEGERS, "product of normal numbers", "conversion of whole numbers", sums, quotient)


def _has_rare_offset(fmt: Format) -> bool:
    offset, scale = fmt.offset, fmt.scale
    of_scales = isinstance(scale, TwoLevel) and scale.inner.offset is not None
    return of_scales or (offset is not None and bool(offset.inner or offset.block))


known = ByFormats(_supports)  # and every dtype, shape and layout


@dataclass(frozen=True)
class FormatRoles(Roles):
    """The roles of parts that a format fills.

    element:     what elements are, element/{element}
    rounding:    rounding/{rounding}
    how:         elements become steps by "shift", "product" or "quotient", code/{how}
    approximate: how most codes are found without exact quotients, code/approximate/…
    values:      how values of codes are found, four at a time, element/values/…
    step:        what a stored scale is, step/{step}
    zero, offset: zero_point/{zero}, zero_point/offset/{offset}
    random:      what draws numbers for rounding
    rule:        how scales are chosen, choose/{rule}; numerator, ratio and power: its parts
    inner, join, levels: of scales of two levels alone
    """

    element: str
    rounding: str
    how: str
    approximate: str
    values: str
    step: str
    zero: str
    offset: str
    random: str
    rule: str
    numerator: str
    ratio: str
    power: str
    inner: str | None = None
    join: str | None = None
    levels: str | None = None


@dataclass(frozen=True)
class Coding(Roles):
    """A format on a device."""

    format: FormatRoles
    device: DeviceArithmetic


@cache
def shader_of(fmt: Format | str) -> tuple[FormatRoles, Constants]:
    """The roles that a format fills, by its name or its spelling, and the constants of its shaders.

    constants: BITS, SIGNED, LOW, HIGH and more, all of which any part may use

    Raises TypeError if no part knows its elements: `known` keeps those from here.
    """
    numbers = lowered(fmt)
    form = parse(fmt)
    roles = _roles(numbers, form)
    constants: dict[str, Constant] = {
        **_element_constants(numbers.element),
        "FAR_VALUES": _reaches_far(numbers.element) or form.zero is not None,
        **_divisors(LEVELS=numbers.levels),
        **_divisors(LOWEST=numbers.element.low, HIGHEST=numbers.element.high),
        "QUICK": roles.approximate != "none",
        "EXACT_PRODUCT": _how(numbers) != "quotient",
        "EMAX": Signed(numbers.emax),
        "THRESHOLD": numbers.threshold,
        "FRACTION_BITS": numbers.fraction_bits,
        "SCALE_STORAGE": STORAGE.get(numbers.scale, 0),
        "OFFSET_STORAGE": STORAGE.get(numbers.offset, 0),
        "ZERO_STORAGE": STORAGE[str(form.zero)] if form.zero is not None else 0,
        **_inner_constants(numbers, form),
    }
    return roles, tuple(constants.items())


def _roles(numbers: FormatNumbers, fmt: Format) -> FormatRoles:
    element = numbers.element
    rounds = element.family in ("integer", "minifloat")
    zero = "float" if "float_zero" in numbers.features else "integer"
    ratio = "two_sided" if numbers.full else "divided"
    inner, join, levels = _levels(numbers, fmt)
    return FormatRoles(
        element="large_codebook" if _is_large(element) else element.family,
        rounding=numbers.rounding,
        how=_how(numbers),
        approximate=_approximate(numbers, _how(numbers)),
        values=_values(numbers),
        step=numbers.scale if numbers.scale in ("e8m0", "two_level") else "float",
        zero=zero if numbers.asym else "none",
        offset="added" if numbers.offset else "none",
        random="philox" if rounds and numbers.rounding == "stochastic" else "none",
        rule="float" if numbers.scale in STORAGE else numbers.scale,  # "given": its scale's
        numerator=_numerator(numbers),
        ratio="signed" if "signed" in numbers.features else ratio,
        power="nearest" if numbers.nearest else "threshold",
        inner=inner,
        join=join,
        levels=levels,
    )


def _how(numbers: FormatNumbers) -> str:
    """How elements become steps."""
    return "shift" if numbers.scale == "e8m0" else "product" if numbers.recip else "quotient"


def _approximate(numbers: FormatNumbers, how: str) -> str:
    """How most codes are found from products with the reciprocal, without exact quotients."""
    element = numbers.element
    if "float_zero" in numbers.features or _is_large(element):
        return "none"
    rounds = element.family in ("integer", "minifloat")
    if _reaches_far(element) or (rounds and numbers.rounding not in _APPROXIMATE):
        return "none"  # the products of the former may be flushed
    most = 16 if how != "quotient" and numbers.rounding == "nearest_even" else 10
    if element.family == "integer" and element.bits > most:
        return "none"
    return (_APPROXIMATE[numbers.rounding] if rounds else "") + element.family


def _values(numbers: FormatNumbers) -> str:
    """How values of codes are found, four at a time."""
    family = numbers.element.family
    if family == "integer" and "float_zero" not in numbers.features:
        return "integer"
    near = family == "minifloat" and not _reaches_far(numbers.element)
    return "minifloat" if near else "each"


def _numerator(numbers: FormatNumbers) -> str:
    """What of a block's statistics a scale is a ratio of."""
    element = numbers.element
    if numbers.asym or numbers.offset:
        return "spread"
    mean = element.statistic in ("mean", "mean_above")
    signed = element.signed and element.family != "binary"
    return "magnitude" if signed and not mean else "high"


def _levels(numbers: FormatNumbers, fmt: Format) -> tuple[str | None, str | None, str | None]:
    """inner, join and levels."""
    if numbers.inner is None or not isinstance(fmt.scale, TwoLevel):
        return None, None, None
    inverse = fmt.scale.reciprocal
    levels = "separate" if numbers.recip and not inverse else "joint"
    return numbers.inner.family, "divided" if inverse else "multiplied", levels


def _element_constants(element: ElementNumbers, prefix: str = "") -> dict[str, Constant]:
    """Of a format's element or, with the prefix INNER_, that of its scales."""
    constants: dict[str, Constant] = {"BITS": element.bits, "SIGNED": element.signed}
    if element.family == "integer":
        constants |= {"LOW": Signed(element.low), "HIGH": Signed(element.high)}
    elif element.family == "minifloat":
        constants |= {
            "MBITS": element.mbits,
            "LEAST": 128 - element.bias,
            "LARGEST_VALUE": bits_of(element.high),
            "MAX_CODE": element.max_code,
            "INFINITY_CODE": element.infinity if element.infinity >= 0 else 256,
        }
    elif element.family == "codebook":
        constants |= _tables(element, large=prefix != "" or _is_large(element))
        constants["LEAST_VALUE"] = bits_of(min(each for each in element.values if each == each))
    constants["NAN_CODE"] = max(element.nan, 0)
    return {prefix + name: value for name, value in constants.items()}


def _is_large(element: ElementNumbers) -> bool:
    """Whether it is a codebook of which selections would be too many."""
    return element.family == "codebook" and element.bits > 4


def _tables(element: ElementNumbers, *, large: bool) -> dict[str, Constant]:
    """Of a codebook: for selections, or as one table."""
    size = 2**element.bits if large else 16
    thresholds = [in_order(bits_of(each)) for each in element.thresholds]
    thresholds += [0xFFFFFFFF] * (size - len(thresholds))
    order = [*element.order, *[0] * (size - len(element.order))]
    values = [bits_of(each) for each in element.values]
    values += [NAN] * (size - len(values))
    if large:
        return {"TABLE": (*thresholds, *order, *values)}
    nibbles = [sum(code << 4 * i for i, code in enumerate(order[at : at + 8])) for at in (0, 8)]
    return {
        "THRESHOLDS": tuple(thresholds),
        "ORDER": tuple(nibbles),
        "VALUES": tuple(value ^ _TURNED for value in values),
    }


def _inner_constants(numbers: FormatNumbers, fmt: Format) -> dict[str, Constant]:
    """Of the scales' own format, where they are codes."""
    if numbers.inner is None or not isinstance(fmt.scale, TwoLevel):
        return {}
    return {
        **_element_constants(numbers.inner, "INNER_"),
        **_divisors(OUTER_LEVELS=numbers.outer_levels),
        "INNER_SMALLEST_NORMAL": bits_of(numbers.inner.smallest_normal),
        "INNER_LARGEST": bits_of(fmt.scale.largest),
        "OUTER_STORAGE": STORAGE[str(fmt.scale.outer_type)],
    }


def _divisors(**values: float) -> dict[str, Constant]:
    """Numbers and, where they are ordinary (step/step), their reciprocals, as bits."""
    constants: dict[str, Constant] = {}
    for name, value in values.items():
        exact = float_of(bits_of(value))
        ordinary = 2.0**-100 <= abs(exact) <= 2.0**100
        constants |= {
            name: bits_of(value),
            f"INVERSE_{name}": bits_of(1 / exact) if ordinary else 0,
        }
    return constants


def _reaches_far(element: ElementNumbers) -> bool:
    """Whether the product of a value with an ordinary step may be too large or too small."""
    if element.family == "codebook":
        sizes = [abs(value) for value in element.values if value]
        return min(sizes) < 2.0**-_FAR or max(sizes) > 2.0**_FAR
    return element.family == "minifloat" and element.bias + element.mbits > _FAR


def in_order(bits: int) -> int:
    """As bits/parts has it: unsigned integers in the order of numbers, -0 below 0."""
    return bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)


def bits_of(value: float) -> int:
    """The bits of the float32 nearest to a number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float_of(bits: int) -> float:
    """The float32 of these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
