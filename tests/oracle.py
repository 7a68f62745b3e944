"""A second opinion on docs/numerics.md: scales, codes and values in exact rationals.

Slow, and written from that page alone. A format is its spelling; tensors are flat row-major lists
of Python floats beside their shape.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tests.exact import (
    FLT_MAX,
    FLT_MIN,
    ROUNDINGS,
    SCALE_RANGE,
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
from tests.oracle_elements import element_of


@dataclass(frozen=True)
class QParams:
    scale: list
    outer: list | None
    zero: list | None


class Oracle:
    """One format: choose, quantize, dequantize, mask."""

    def __init__(self, spelling: str):
        parts = re.fullmatch(r"([^:]+):([^:]+):(\(.*\)|[^:()]+)((?::[a-z_]+)*)", spelling)
        self.name, self.block, scale, options = parts.groups()
        self.options = set(options.split(":")[1:])
        self.mode = next((o for o in self.options if o in ROUNDINGS), "nearest_even")
        if scale in ("e4m3", "e5m2"):
            scale = f"({scale}:tensor:fp32)"
        self.element = element_of(self.name, self.options)
        self.inner = Oracle(scale[1:-1]) if scale.startswith("(") else None
        self.scale, _, rule = scale.partition("/")
        self.rule = rule or "floor"
        self.asym = "asym" in self.options
        self.float_scale = self.scale in SCALE_RANGE

    @cached_property
    def levels(self) -> Fraction:
        """L of 3.1."""
        return self.element.levels

    @property
    def fraction_bits(self) -> int:
        """f of 1.3."""
        return self.element.fraction_bits if self.scale == "e8m0" else 0

    @property
    def poisons(self) -> bool:
        """3.7, read as: an inner element with reserved codes, whatever its name."""
        return self.scale == "e8m0" or (
            self.inner is not None and self.inner.element.nan is not None
        )

    def range(self, block: list[float]) -> tuple[float, float]:
        finite = [v for v in block if math.isfinite(v)]
        return min([0.0, *finite]), max([0.0, *finite])

    def numerator(self, block: list[float]) -> float:
        low, high = self.range(block)
        if self.name in ("binary", "ternary"):
            return mean_magnitude(block, twn=self.name == "ternary")
        if self.asym:
            return min(nearest(Fraction(high) - Fraction(low)), FLT_MAX)
        return max(-low, high) if self.element.signed else high

    def quotient(self, block: list[float]) -> float:
        """a / L, or the larger of the two quotients of `full`."""
        if "full" in self.options and self.float_scale:
            low, high = self.range(block)
            q = self.element.qmax
            return max(divide(high, float(q)), divide(-low, float(q + 1)))
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
        grid = m * 2**self.element.mbits
        threshold = {
            "floor": math.inf,
            "ceil": 1,
            "rceil": (m - 1) * 2**23 + 1,
            "even": (1 - pow2(-(self.element.mbits + 1))) * 2**23,
            "tosa": ((grid + Fraction(1, 2)) / 2**self.element.mbits - 1) * 2**23 + (grid % 2 == 0),
        }[self.rule]
        return exponent(a) - emax + (mant(a) >= threshold)

    def stored(self, block: list[float]) -> float | int:
        if self.float_scale:
            return clamp(nearest(self.quotient(block), self.scale), *SCALE_RANGE[self.scale])
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
            scale = [255 if p else self.stored(b) for b, p in zip(blocks, poisoned, strict=True)]
        chosen = QParams(scale, outer, None)
        if not self.asym:
            return chosen
        steps = self.steps(chosen, counts)
        zero = [
            0 if p else self.zero(b, s) for b, p, s in zip(blocks, poisoned, steps, strict=True)
        ]
        return QParams(scale, outer, zero)

    def two_levels(self, blocks, poisoned, counts) -> tuple[list[int], list[float]]:
        """3.5"""
        inner = self.inner.element
        owners, outers = block_of(self.inner.block, counts), layout(self.inner.block, counts)[1]
        largest, smallest = float(self.inner.levels), float(inner.smallest_normal)
        amax = [0.0] * math.prod(outers)
        for b, p, owner in zip(blocks, poisoned, owners, strict=True):
            amax[owner] = max(amax[owner], 0.0 if p else self.numerator(b))
        divisor = multiply(float(self.levels), largest)
        outer = [clamp(divide(a, divisor), FLT_MIN, FLT_MAX) for a in amax]
        codes = []
        for b, p, owner in zip(blocks, poisoned, owners, strict=True):
            s = clamp(
                divide(divide(self.numerator(b), float(self.levels)), outer[owner]),
                smallest,
                largest,
            )
            codes.append(inner.nan if p else self.inner.element.encode(s, "nearest_even"))
        return codes, outer

    def zero(self, block: list[float], step: float) -> int:
        """3.6"""
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
            raw = [multiply(qparams.outer[o], self.inner.element.decode(c)) for c, o in pairs]
            return [s if math.isnan(s) else clamp(s, 2.0**-149, FLT_MAX) for s in raw]
        if self.scale == "e8m0":
            return [
                math.nan if b == 255 else 2.0 ** (b - 127 - self.fraction_bits)
                for b in qparams.scale
            ]
        return qparams.scale

    def spread(self, values, shape, qparams: QParams):
        """For every element: itself in steps, its step and its zero point."""
        counts = layout(self.block, shape)[1]
        steps, inverses = self.steps(qparams, counts), self.inverses(qparams, counts)
        for v, b in zip(values, block_of(self.block, shape), strict=True):
            y = multiply(v, inverses[b]) if "recip" in self.options else divide(v, steps[b])
            yield y, steps[b], qparams.zero[b] if qparams.zero else 0

    def inverses(self, qparams: QParams, counts: tuple[int, ...]) -> list[float]:
        """r of section 4; min leaves a NaN alone."""
        if "recip" not in self.options:
            return []
        if not self.inner:
            return [min(divide(1.0, s), FLT_MAX) for s in qparams.scale]
        pairs = zip(qparams.scale, block_of(self.inner.block, counts), strict=True)
        found = [
            divide(divide(1.0, qparams.outer[o]), self.inner.element.decode(c)) for c, o in pairs
        ]
        return [r if math.isnan(r) else min(r, FLT_MAX) for r in found]

    def quantize(
        self, values, shape, qparams: QParams, seed: int = 0, offset: int = 0
    ) -> list[int]:
        codes = []
        for i, (y, _, z) in enumerate(self.spread(values, shape, qparams)):
            u = uniform(seed, i + offset) if self.mode == "stochastic" else None
            codes.append(self.element.encode(y, self.mode, z, u))
        return codes

    def dequantize(self, codes, shape, qparams: QParams, dtype: str = "fp32") -> list[float]:
        rows = zip(codes, self.spread([0.0] * len(codes), shape, qparams), strict=True)
        return [
            nearest(multiply(self.element.decode(c) - z, step), dtype) for c, (_, step, z) in rows
        ]

    def in_range(self, values, shape, qparams: QParams) -> list[bool]:
        """The mask of the straight-through gradient."""
        mode = "nearest_even" if self.mode == "stochastic" else self.mode
        rows = self.spread(values, shape, qparams)
        return [math.isfinite(y) and self.element.holds(y, mode, z) for y, _, z in rows]
