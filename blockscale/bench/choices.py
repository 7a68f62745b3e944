# SPDX-License-Identifier: BSD-3-Clause
"""What of the CPU's kernels is a choice, and how each is measured (src/tuning/tuning.h).

Some choices are sizes: each candidate runs the same calls. The others are bounds between two ways:
both run calls of several sizes, and the bound lies where the product of all times is the least.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import blockscale as bs

Call = Callable[[], Any]
SIDE = 2048  # of weights and tensors


@dataclass(frozen=True)
class Size:
    """candidates: what it may be; calls: what runs with each, made anew for it."""

    name: str
    candidates: tuple[int, ...]
    calls: Callable[[], list[Call]]
    matrices: bool = False


@dataclass(frozen=True)
class Bound:
    """sizes: where the two ways are compared; calls: what runs at one of them.

    above: whether the choice is the first size of the way above it; else the last of the one below
    """

    name: str
    sizes: tuple[int, ...]
    calls: Callable[[int], list[Call]]
    above: bool
    matrices: bool = False

    def cuts(self) -> list[int]:
        """The choice for each number of sizes that the way below takes."""
        least, most = 1 if self.above else 0, 2 * self.sizes[-1]
        return [*self.sizes, most] if self.above else [least, *self.sizes]


def layer(weight: str, given: str | None, n: int, k: int) -> nn.Module:
    """A linear layer [n, k] in a format, its inputs in another if one is given."""
    model = nn.Sequential(nn.Linear(k, n, bias=False))
    bs.quantize_(model, bs.Recipe(weight=weight, input=given))
    return model


def layers(formats: Sequence[tuple[str, str | None]], rows: int, half: bool = False) -> list[Call]:
    """Calls of layers [SIDE, SIDE] with x [rows, SIDE]."""
    x = torch.randn(rows, SIDE).to(torch.bfloat16 if half else torch.float32)
    return [partial(layer(*each, SIDE, SIDE), x) for each in formats]


def _small_weights(kilobytes: int) -> list[Call]:
    k = 512
    own = layer("int8_channel", "int8_token", kilobytes * 1024 // k, k)
    return [partial(own, torch.randn(2048, k))]


def _units() -> list[Call]:
    x = torch.randn(SIDE, SIDE)
    stored = [bs.quantize(x, each) for each in ("mxfp4", "int8_channel")]
    given: list[Call] = [
        partial(bs.quantize, x, each) for each in ("mxfp4", "int8_channel", "nvfp4")
    ]
    return [*given, *(q.dequantize for q in stored)]


def _short(elements: int) -> list[Call]:
    x = torch.randn(elements // 64, 64)
    return [partial(bs.quantize, x, "mxfp4"), bs.quantize(x, "mxfp4").dequantize]


def _read_again(bytes_moved: int) -> list[Call]:
    """Numbers that are made and then read, so that what left the caches comes back."""
    q = bs.quantize(torch.randn(bytes_moved // 5 // 1024, 1024), "int8_channel")
    return [lambda: q.dequantize().sum()]


INTEGERS = (("int8_channel", "int8_token"), ("int4:group32:fp32", "int8_token"))
BLOCKS = (("mxint8", "mxint8"), ("bfp8", "bfp8"))
POWERS: tuple[tuple[str, None], ...] = (("mxfp4", None), ("mxfp8", None))
PARTS: tuple[tuple[str, None], ...] = (("nvfp4", None), ("int4:group32:fp32", None))
_CACHED = tuple(96 << (10 + i) for i in range(5))
_FEW = (1, 2, 4, 6, 8, 12, 16, 24, 32)
_MANY = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)


def _above(rows: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each + 1 for each in rows)


QUESTIONS: tuple[Size | Bound, ...] = (
    Size("unit_elements", tuple(1 << i for i in range(12, 18)), _units),
    Bound("threaded_elements", tuple(1 << i for i in range(11, 19)), _short, above=True),
    Bound("stream_bytes", tuple(5 << i for i in range(20, 26)), _read_again, above=True),
    Bound(
        "weight_bytes",
        (128, 256, 384, 512, 640, 768, 1024, 1536, 2048),
        _small_weights,
        above=False,
    ),
    Size("rows_bytes", _CACHED, lambda: layers((*INTEGERS, *BLOCKS), 512)),
    Size("matrix_rows_bytes", _CACHED, lambda: layers(INTEGERS, 512), matrices=True),
    Size("matrix_codes", (256, 512, 1024, 4096), lambda: layers(INTEGERS, 512), matrices=True),
    Size("matrix_panels", (4, 8, 16, 32), lambda: layers((*POWERS, *PARTS), 512), matrices=True),
    Bound("vector_rows", _FEW, partial(layers, INTEGERS), above=False, matrices=True),
    Bound("vector_rows_of_blocks", _MANY, partial(layers, BLOCKS), above=False, matrices=True),
    Size("panel_rows", (128, 256, 512, 1024), lambda: layers((("mxfp4", None),), 1024)),
    Bound(
        "few_of_nibbles_float",
        _FEW,
        partial(layers, (("mxfp4", None), ("nvfp4", None))),
        above=False,
    ),
    Bound(
        "few_of_books_float", _FEW, partial(layers, (("log8f3:group64:fp32", None),)), above=False
    ),
    Bound("few_of_bytes_float", _FEW, partial(layers, (("mxfp8", None),)), above=False),
    Bound("bf16_rows_float", _above(_FEW), partial(layers, POWERS, half=True), True, matrices=True),
    Bound(
        "bf16_rows_of_parts_float",
        _above(_MANY),
        partial(layers, PARTS, half=True),
        True,
        matrices=True,
    ),
    Bound("wide_rows_float", _above(_MANY), partial(layers, POWERS), True, matrices=True),
    Bound("wide_rows_of_parts_float", _above(_MANY), partial(layers, PARTS), True, matrices=True),
)


def best_cut(below: Sequence[float], above: Sequence[float]) -> int:
    """How many of the first sizes the way below should take.

    below, above: the times of either way at each size; what counts is the product of the times
    """
    logs = [math.log(a / b) for a, b in zip(below, above, strict=True)]
    sums = [0.0, *itertools.accumulate(logs)]
    return min(range(len(sums)), key=sums.__getitem__)


def gain(below: Sequence[float], above: Sequence[float], cut: int, other: int) -> float:
    """The mean time with `cut`, in that with `other`."""
    logs = [math.log(a / b) for a, b in zip(below, above, strict=True)]
    return math.exp((sum(logs[:cut]) - sum(logs[:other])) / len(logs))


def asked(isa: str) -> Iterator[Size | Bound]:
    """The questions that there are with an instruction set."""
    few = isa in ("avx512", "avx512vnni", "amx")
    for each in QUESTIONS:
        if each.matrices and isa != "amx":
            continue
        if each.name.startswith("few_") and not few:
            continue
        yield each
