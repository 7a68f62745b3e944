# SPDX-License-Identifier: BSD-3-Clause
"""A second opinion on docs/numerics.md: scales, codes and values in exact rationals.

Slow, and written from that page alone. A format is its spelling; tensors are flat row-major lists
of Python floats beside their shape.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tests.support.exact import (
    FLT_MAX,
    ROUNDINGS,
    SCALE_RANGE,
    add,
    block_of,
    clamp,
    divide,
    exponent,
    layout,
    mant,
    mean_magnitude,
    multiply,
    nearest,
    pow2,
    rounded,
    uniform,
)
from tests.support.oracle_elements import Integer, element_of


@dataclass(frozen=True)
class QParams:
    scale: list
    outer: list | None
    zero: list | None
    offset: list | None = None
    offset_outer: list | None = None


def split(spelling: str) -> list[str]:
    """The parts between colons that are outside of parentheses."""
    parts, depth = [""], 0
    for c in spelling:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == ":" and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def stored(v: float, to: str) -> float:
    """A number of any sign in a float type, clamped to its largest."""
    largest = SCALE_RANGE[to][1]
    return clamp(nearest(clamp(v, -largest, largest), to), -largest, largest)


def signed(element, pattern: int) -> int:
    """The code of a bit pattern: integers are two's complement."""
    return pattern - 2**element.bits if pattern > max(element.codes) else pattern


class Oracle:
    """One format: choose, quantize, dequantize, mask."""

    def __init__(self, spelling: str):
        self.name, self.block, scale, *options = split(spelling)
        named = dict(re.fullmatch(r"([a-z_]+)(?:\((.*)\))?", option).groups() for option in options)
        self.options = set(named)
        self.mode = next((o for o in self.options if o in ROUNDINGS), "nearest_even")
        self.inv = scale.endswith("/inv")
        scale = scale.removesuffix("/inv")
        if scale in ("e4m3", "e5m2"):
            scale = f"({scale}:tensor:fp32)"
        self.element = element_of(self.name, self.options)
        self.inner = Oracle(scale[1:-1]) if scale.startswith("(") else None
        self.coded = element_of(scale) if scale.startswith("ue") else None  # a scale that is a code
        self.zero_type = named.get("asym")
        self.offset = "offset" in named
        kind = named.get("offset") or (scale if scale in SCALE_RANGE else "fp32")
        self.offset_inner = Oracle(kind) if self.offset and ":" in kind else None
        self.offset_type = kind
        self.scale, _, rule = scale.partition("/")
        self.rule = rule or "floor"
        self.asym = "asym" in self.options
        self.float_scale = self.scale in SCALE_RANGE or self.coded is not None

    @cached_property
    def levels(self) -> Fraction:
        """L of 3.1."""
        if self.offset:
            return Fraction(self.ends[1]) - Fraction(self.ends[0])
        return self.element.levels

    @cached_property
    def mbits(self) -> int:
        """Mantissa bits of L: of a difference, as many as it needs."""
        if not self.offset:
            return self.element.mbits
        odd = self.levels.numerator
        while odd % 2 == 0:
            odd //= 2
        return odd.bit_length() - 1

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value of the element; 0 lies between."""
        values = [self.element.decode(code) for code in self.element.codes]
        values = [v for v in values if math.isfinite(v)]
        return min(0.0, *values), max(values)

    @property
    def fraction_bits(self) -> int:
        """f of 1.3."""
        return self.element.fraction_bits if self.scale == "e8m0" else 0

    @property
    def poisons(self) -> bool:
        """3.7, read as: an inner element with reserved codes, whatever its name."""
        code = self.coded or (self.inner and self.inner.element)
        return self.scale == "e8m0" or (code is not None and code.nan is not None)

    def range(self, block: list[float]) -> tuple[float, float]:
        finite = [v for v in block if math.isfinite(v)]
        if self.offset and finite:
            low = min(finite)
            unsigned = self.offset_inner is not None and not self.offset_inner.element.signed
            return min(low, 0.0) if unsigned else low, max(finite)
        return min([0.0, *finite]), max([0.0, *finite])

    def numerator(self, block: list[float]) -> float:
        low, high = self.range(block)
        if self.name in ("binary", "ternary"):
            return mean_magnitude(block, twn=self.name == "ternary")
        if self.asym or self.offset:
            return min(nearest(Fraction(high) - Fraction(low)), FLT_MAX)
        return max(-low, high) if self.element.signed else high

    def quotient(self, block: list[float]) -> float:
        """a / L, or the larger of the two quotients of `full`."""
        if "full" in self.options and self.float_scale:
            low, high = self.range(block)
            q = self.element.qmax
            return max(divide(high, float(q)), divide(-low, float(q + 1)))
        low, high = self.range(block)
        if "signed" in self.options:
            return divide(high if high >= -low else low, -float(self.element.qmax + 1))
        table = self.float_scale and self.element.signed and not (self.asym or self.offset)
        if table and self.ends[0] != -self.ends[1] and not isinstance(self.element, Integer):
            return max(divide(high, self.ends[1]), divide(low, self.ends[0]))
        return divide(self.numerator(block), float(self.levels))

    def power(self, a: float) -> int | None:
        """3.4: the exponent n; None for the smallest scale."""
        if self.rule == "nearest":
            s = divide(a, float(self.levels))
            return exponent(s) + (mant(s) > 0x3504F3) if s else None
        if a == 0:
            return None
        emax = exponent(self.levels)
        m = self.levels / pow2(emax)
        grid = m * 2**self.mbits
        threshold = {
            "floor": math.inf,
            "ceil": 1,
            "rceil": (m - 1) * 2**23 + 1,
            "even": (1 - pow2(-(self.mbits + 1))) * 2**23,
            "tosa": ((grid + Fraction(1, 2)) / 2**self.mbits - 1) * 2**23 + (grid % 2 == 0),
        }[self.rule]
        return exponent(a) - emax + (mant(a) >= threshold)

    def stored(self, block: list[float]) -> float | int:
        if self.coded:
            smallest, largest = float(self.coded.magnitude(1)), float(self.coded.max)
            return self.coded.encode(clamp(self.quotient(block), smallest, largest), "nearest_even")
        if self.float_scale:
            q = self.quotient(block)
            size = clamp(nearest(abs(q), self.scale), *SCALE_RANGE[self.scale])
            return -size if q < 0 else size
        n = self.power(self.numerator(block))
        if self.scale == "e8m0":
            return 0 if n is None else clamp(n + self.fraction_bits, -127, 127) + 127
        return 2.0 ** (-126 if n is None else clamp(n, -126, 127))

    def choose(self, values: list[float], shape: tuple[int, ...]) -> QParams:
        owners, counts = block_of(self.block, shape), layout(self.block, shape)[1]
        blocks = [[] for _ in range(math.prod(counts))]
        for v, owner in zip(values, owners, strict=True):
            blocks[owner].append(v)
        poisoned = [self.poisons and not all(map(math.isfinite, b)) for b in blocks]
        outer = None
        if self.inner:
            scale, outer = self.two_levels(blocks, poisoned, counts)
        else:
            nan = self.coded.nan if self.coded else 255
            scale = [nan if p else self.stored(b) for b, p in zip(blocks, poisoned, strict=True)]
        chosen = QParams(scale, outer, None)
        if not self.asym and not self.offset:
            return chosen
        steps = self.steps(chosen, counts)
        if self.offset:
            wanted = [self.lift(b, s) for b, s in zip(blocks, steps, strict=True)]
            return QParams(scale, outer, None, *self.stored_offsets(wanted, counts))
        zero = [
            0 if p else self.zero(b, s) for b, p, s in zip(blocks, poisoned, steps, strict=True)
        ]
        return QParams(scale, outer, zero)

    def lift(self, block: list[float], step: float) -> float:
        """3.8: the offset before it is stored."""
        low = self.range(block)[0]
        b = add(low, -multiply(step, self.ends[0]))
        return 0.0 if math.isnan(b) else clamp(b + 0.0, -FLT_MAX, FLT_MAX)  # -0 becomes 0

    def stored_offsets(self, wanted: list[float], counts) -> tuple[list, list | None]:
        inner = self.offset_inner
        if inner is None:
            return [stored(b, self.offset_type) for b in wanted], None
        sign = 1.0 if inner.element.signed else -1.0
        owners, outers = block_of(inner.block, counts), layout(inner.block, counts)[1]
        amax = [0.0] * math.prod(outers)
        for b, o in zip(wanted, owners, strict=True):
            amax[o] = max(amax[o], abs(b) if sign > 0 else max(-b, 0.0, abs(b)))
        outer = [
            clamp(nearest(divide(a, inner.ends[1]), inner.scale), *SCALE_RANGE[inner.scale])
            for a in amax
        ]
        codes = [
            inner.element.encode(divide(sign * b, outer[o]), "nearest_even") % 2**inner.element.bits
            for b, o in zip(wanted, owners, strict=True)
        ]
        return codes, [sign * s for s in outer]

    def offsets(self, qparams: QParams, counts) -> list[float] | None:
        """The offset of every block as a number."""
        inner = self.offset_inner
        if inner is None or qparams.offset is None:
            return qparams.offset
        owners = block_of(inner.block, counts)
        found = [
            multiply(inner.element.decode(signed(inner.element, c)), qparams.offset_outer[o])
            for c, o in zip(qparams.offset, owners, strict=True)
        ]
        return [clamp(b, -FLT_MAX, FLT_MAX) for b in found]

    def two_levels(self, blocks, poisoned, counts) -> tuple[list[int], list[float]]:
        """3.5"""
        inner = self.inner.element
        owners, outers = block_of(self.inner.block, counts), layout(self.inner.block, counts)[1]
        largest, smallest = self.inner.ends[1], float(inner.smallest_normal)
        amax = [0.0] * math.prod(outers)
        for b, p, owner in zip(blocks, poisoned, owners, strict=True):
            amax[owner] = max(amax[owner], 0.0 if p else self.numerator(b))
        divisor = multiply(float(self.levels), largest)
        limits = SCALE_RANGE[self.inner.scale]
        quotients = [divide(divisor, a) if self.inv else divide(a, divisor) for a in amax]
        outer = [clamp(nearest(q, self.inner.scale), *limits) for q in quotients]
        codes = []
        for b, p, owner in zip(blocks, poisoned, owners, strict=True):
            quotient = divide(self.numerator(b), float(self.levels))
            scaled = (multiply if self.inv else divide)(quotient, outer[owner])
            s = clamp(scaled, smallest, largest)
            codes.append(inner.nan if p else self.inner.element.encode(s, "nearest_even"))
        return codes, outer

    def zero(self, block: list[float], step: float) -> int | float:
        """3.6"""
        if self.zero_type:
            q = divide(self.range(block)[0], step)
            z = add(float(self.element.qmin), -q)
            return 0.0 if math.isnan(z) else stored(z, self.zero_type)
        q, qmin, qmax = divide(self.range(block)[0], step), self.element.qmin, self.element.qmax
        return (
            clamp(qmin - rounded(Fraction(q), "nearest_even"), qmin, qmax)
            if math.isfinite(q)
            else qmax
        )

    def steps(self, qparams: QParams, counts: tuple[int, ...]) -> list[float]:
        """1.3: the float32 step of every block."""
        if self.inner:
            owners = block_of(self.inner.block, counts)
            pairs = zip(qparams.scale, owners, strict=True)
            pairs = [(self.inner.element.decode(c), qparams.outer[o]) for c, o in pairs]
            raw = [divide(v, o) if self.inv else multiply(o, v) for v, o in pairs]
            return [
                s
                if math.isnan(s) or v == 0 or (o == 0 and not self.inv)
                else math.copysign(clamp(abs(s), 2.0**-149, FLT_MAX), s)
                for s, (v, o) in zip(raw, pairs, strict=True)
            ]
        if self.coded:
            return [self.coded.decode(c) for c in qparams.scale]
        if self.scale == "e8m0":
            return [
                math.nan if b == 255 else 2.0 ** (b - 127 - self.fraction_bits)
                for b in qparams.scale
            ]
        return qparams.scale

    def spread(self, values, shape, qparams: QParams, nan: float = 0.0):
        """For every element: itself in steps, its step, its zero point and its offset.

        Where zero points are no integers, they are part of the first; nan: what NaN counts as
        before one is added.
        """
        counts = layout(self.block, shape)[1]
        steps, inverses = self.steps(qparams, counts), self.inverses(qparams, counts)
        offsets = self.offsets(qparams, counts)
        for v, b in zip(values, block_of(self.block, shape), strict=True):
            if offsets is not None:
                v = add(v, -offsets[b])
            y = multiply(v, inverses[b]) if "recip" in self.options else divide(v, steps[b])
            if self.zero_type:
                y = add(nan if math.isnan(y) else y, qparams.zero[b])
            offset = None if offsets is None else offsets[b]
            yield y, steps[b], qparams.zero[b] if qparams.zero else 0, offset

    def inverses(self, qparams: QParams, counts: tuple[int, ...]) -> list[float]:
        """r of section 4; min leaves a NaN alone."""
        if "recip" not in self.options:
            return []
        if not self.inner or self.inv:
            steps = self.steps(qparams, counts)
            return [s if math.isnan(s) else clamp(divide(1.0, s), -FLT_MAX, FLT_MAX) for s in steps]
        pairs = zip(qparams.scale, block_of(self.inner.block, counts), strict=True)
        found = [
            divide(divide(1.0, qparams.outer[o]), self.inner.element.decode(c)) for c, o in pairs
        ]
        return [r if math.isnan(r) else clamp(r, -FLT_MAX, FLT_MAX) for r in found]

    def quantize(
        self, values, shape, qparams: QParams, seed: int = 0, offset: int = 0
    ) -> list[int]:
        codes = []
        for i, (y, _, z, _) in enumerate(self.spread(values, shape, qparams)):
            u = uniform(seed, i + offset) if self.mode == "stochastic" else None
            codes.append(self.element.encode(y, self.mode, 0 if self.zero_type else z, u))
        return codes

    def dequantize(self, codes, shape, qparams: QParams, dtype: str = "fp32") -> list[float]:
        rows = zip(codes, self.spread([0.0] * len(codes), shape, qparams), strict=True)
        found = []
        for c, (_, step, z, offset) in rows:
            value = multiply(add(self.element.decode(c), -float(z)), step)
            found.append(nearest(value if offset is None else add(value, offset), dtype))
        return found

    def in_range(self, values, shape, qparams: QParams) -> list[bool]:
        """The mask of the straight-through gradient."""
        mode = "nearest_even" if self.mode == "stochastic" else self.mode
        rows = self.spread(values, shape, qparams, math.nan)
        zeros = not self.zero_type
        return [
            math.isfinite(y) and self.element.holds(y, mode, z if zeros else 0)
            for y, _, z, _ in rows
        ]
