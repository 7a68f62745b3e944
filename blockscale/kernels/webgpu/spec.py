"""A format as what shaders are made of: the parts that they choose, and their constants."""

import struct
from collections.abc import Sequence
from functools import cache

from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.kernels.numbers import FormatNumbers, lowered, supports_families
from blockscale.kernels.registry import ByFormats
from blockscale.kernels.webgpu.gpu.shader import Constant, Signed

FAMILIES = ("integer", "minifloat")  # of elements, that parts of shaders know
FEATURES = ("nd", "flat")  # of FormatNumbers.features, that they know
_STORAGE = {"fp32": 0, "fp16": 1, "bf16": 2}  # as bits/storage.wgsl has it
Choices = tuple[tuple[str, str], ...]
Constants = tuple[tuple[str, Constant], ...]
_families = supports_families(FAMILIES, FEATURES)
_FAR = 24  # values beyond 2^24 or below 2^-24 times an ordinary step may not be normal


def _supported(formats: Sequence[Format]) -> bool:
    return _families(formats)


known = ByFormats(_supported)  # and every dtype, shape and layout


@cache
def shader_of(fmt: Format | str) -> tuple[Choices, Constants]:
    """The choices and constants of a shader for a format, its name or its spelling.

    choices: roles of parts: element, rounding, how, step, zero, offset, random, hardware and
        those of choosing scales
    constants: BITS, SIGNED, LOW, HIGH and more, all of which any part may use

    Raises TypeError if no part knows its elements: `known` keeps those from here.
    """
    numbers = lowered(fmt)
    element = numbers.element
    drawn = numbers.rounding == "stochastic" and element.family in ("integer", "minifloat")
    choices = {
        "element": element.family,
        "rounding": numbers.rounding,
        "how": _how(numbers),
        "step": _step(numbers),
        "zero": "integer" if numbers.asym else "none",
        "offset": "added" if numbers.offset else "none",
        "random": "philox" if drawn else "none",
        "rule": "float" if numbers.scale in _STORAGE else numbers.scale,
        "numerator": _numerator(numbers),
        "ratio": _ratio(numbers),
        "power": "nearest" if numbers.nearest else "threshold",
        "hardware": "plain",
    }
    constants: dict[str, Constant] = {
        **_element_constants(element),
        **_divisors(LEVELS=numbers.levels, LOWEST=element.low, HIGHEST=element.high),
        "EMAX": Signed(numbers.emax),
        "THRESHOLD": numbers.threshold,
        "SCALE_STORAGE": _STORAGE.get(numbers.scale, 0),
        "OFFSET_STORAGE": _STORAGE.get(numbers.offset, 0),
        "FAR_VALUES": _reaches_far(element),
        "FRACTION_BITS": numbers.fraction_bits,
    }
    return tuple(choices.items()), tuple(constants.items())


def _how(numbers: FormatNumbers) -> str:
    """How elements become steps."""
    if numbers.scale == "e8m0":
        return "shift"
    return "product" if numbers.recip else "quotient"


def _step(numbers: FormatNumbers) -> str:
    """How a stored scale becomes a step."""
    return numbers.scale if numbers.scale in ("e8m0", "two_level") else "float"


def _numerator(numbers: FormatNumbers) -> str:
    """What of a range a power of two, or an outer scale, is chosen from."""
    if numbers.asym or "offset" in numbers.features:
        return "spread"
    return "magnitude" if numbers.element.signed and numbers.statistic != "mean" else "high"


def _ratio(numbers: FormatNumbers) -> str:
    """How a float scale is divided from a range."""
    if "signed" in numbers.features:
        return "signed"
    return "two_sided" if numbers.full else "divided"


def _divisors(**values: float) -> dict[str, Constant]:
    """Numbers and, where they are ordinary (step/step.wgsl), their reciprocals, as bits."""
    found: dict[str, Constant] = {}
    for name, value in values.items():
        exact = float_of(bits_of(value))
        ordinary = 2.0**-100 <= abs(exact) <= 2.0**100
        found |= {name: bits_of(value), f"INVERSE_{name}": bits_of(1 / exact) if ordinary else 0}
    return found


def _element_constants(element: ElementNumbers) -> dict[str, Constant]:
    common: dict[str, Constant] = {"BITS": element.bits, "SIGNED": element.signed}
    if element.family == "integer":
        return common | {"LOW": Signed(element.low), "HIGH": Signed(element.high)}
    return common | minifloat_constants(element)


def minifloat_constants(element: ElementNumbers) -> dict[str, Constant]:
    """Those of a minifloat besides BITS."""
    return {
        "MBITS": element.mbits,
        "LEAST": 128 - element.bias,
        "LARGEST_VALUE": bits_of(element.high),
        "MAX_CODE": element.max_code,
        "NAN_CODE": max(element.nan, 0),
        "INFINITY_CODE": element.infinity if element.infinity >= 0 else 256,
    }


def _reaches_far(element: ElementNumbers) -> bool:
    """Whether the product of a value with an ordinary step may be too large or too small."""
    return element.family == "minifloat" and element.bias + element.mbits > _FAR


def bits_of(value: float) -> int:
    """The bits of the float32 nearest to a number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float_of(bits: int) -> float:
    """The float32 of these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
