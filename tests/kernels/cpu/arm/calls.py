# SPDX-License-Identifier: BSD-3-Clause
"""Calls for driver.cpp: tensors laid out in one memory, and what the calls must leave there."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from blockscale.core.element import ElementNumbers
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import FormatNumbers, lowered

# The enumerations of src/spec.h, in order.
FAMILIES = ("integer", "minifloat", "binary", "codebook")
STATISTICS = ("magnitude", "high", "range", "mean", "mean_above")
SCALES = ("fp32", "fp16", "bf16", "pow2", "e8m0", "two_level")
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up", "stochastic")
STORED = ("", "fp32", "fp16", "bf16")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LINE = 64  # tensors begin on a multiple; what lies between them must not be written
UNTOUCHED = 0xA5


def real(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def element_words(e: ElementNumbers) -> list[int]:
    """In the order that the driver reads."""
    words = [FAMILIES.index(e.family), e.bits, int(e.signed)]
    words += [real(e.low), real(e.high), real(e.smallest_normal), STATISTICS.index(e.statistic)]
    words += [e.mbits, e.bias, e.max_code, e.nan, e.infinity]
    words += [len(e.values), *map(real, e.values), len(e.order), *e.order]
    return [*words, len(e.thresholds), *map(real, e.thresholds)]


def spec_words(n: FormatNumbers) -> list[int]:
    """The same of a format."""
    words = [*element_words(n.element), STATISTICS.index(n.statistic), SCALES.index(n.scale)]
    words += [int(n.nearest), n.threshold, n.emax, real(n.levels), n.fraction_bits, int(n.full)]
    words += [int(n.asym), int(n.recip), int(n.poisons), ROUNDINGS.index(n.rounding)]
    return [*words, real(n.outer_levels), STORED.index(n.zero), STORED.index(n.offset)]


@dataclass
class Calls:
    """Lines for the driver, the memory that they work on, and what must come out."""

    lines: list[str] = field(default_factory=list)
    given: list[tuple[int, Tensor]] = field(default_factory=list)
    expected: list[tuple[int, Tensor, str]] = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    weights: int = 0
    size: int = LINE  # address 0 means none

    def place(self, n: int) -> int:
        """An address with room for n bytes."""
        at = self.size
        self.size += -(-(n + 1) // LINE) * LINE
        return at

    def put(self, t: Tensor | None) -> int:
        """The address of a tensor that is read; 0 for none."""
        if t is None:
            return 0
        self.given.append((self.place(t.nbytes), t.contiguous()))
        return self.given[-1][0]

    def get(self, t: Tensor | None, label: str) -> int:
        """The address where a call must write these bits; 0 for none."""
        if t is None:
            return 0
        self.expected.append((self.place(t.nbytes), t.contiguous(), label))
        return self.expected[-1][0]

    def parts(self, q: QParams) -> list[int]:
        return [self.put(part) for part in q[:4]]

    def add(self, name: str, *words: int | list[int]) -> None:
        flat = [w for word in words for w in (word if isinstance(word, list) else [word])]
        self.lines.append(" ".join([name, *map(str, flat)]))

    def format(self, spelling: str) -> int:
        """The number of a format, which the driver is told of once."""
        if spelling not in self.formats:
            fmt, inner = parse(spelling), -1
            if isinstance(fmt.scale, TwoLevel):
                inner = self.format(fmt.scale.inner.spelling)
            block = [number for pair in fmt.block.sizes for number in pair]
            spec = spec_words(lowered(fmt))
            self.add("format", spec, len(block), block, fmt.block.rest, inner)
            self.formats[spelling] = len(self.formats)
        return self.formats[spelling]

    def weight(self, spelling: str, codes: Tensor, q: QParams, k: int) -> int:
        """The number of a linear weight."""
        number = self.format(spelling)
        self.add("weight", number, codes.shape[0], k, self.put(codes), self.parts(q))
        self.weights += 1
        return self.weights - 1

    def memory(self) -> bytearray:
        """What the calls begin with."""
        memory = bytearray([UNTOUCHED]) * self.size
        for at, t in self.given:
            memory[at : at + t.nbytes] = raw(t)
        return memory

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Files for the driver."""
        calls, memory = folder / "calls.txt", folder / "memory"
        calls.write_text("\n".join(self.lines) + "\n")
        memory.write_bytes(self.memory())
        return calls, memory

    def wrong(self, result: bytes) -> list[str]:
        """Labels of what has other bits, NaN of any payload alike, and of what else was written."""
        left, bad = bytearray(result), []
        for at, t, label in self.expected:
            found = torch.frombuffer(bytearray(result[at : at + t.nbytes]), dtype=t.dtype)
            plain = t.reshape(-1)
            same = same_bits(found, plain)
            if not bool(same.all()):
                i = int((~same).nonzero()[0])
                bad.append(f"{label}: {int((~same).sum())} differ, [{i}] {found[i]} != {plain[i]}")
            left[at : at + t.nbytes] = bytes([UNTOUCHED]) * t.nbytes
        return bad + ["other memory was written"] * (left != self.memory())


def raw(t: Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors are equal, also in the sign of zeros."""
    if not a.is_floating_point():
        return a == b
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
