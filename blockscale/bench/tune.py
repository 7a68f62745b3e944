# SPDX-License-Identifier: BSD-3-Clause
"""What of the CPU's kernels is a choice, and how each is measured (src/tuning.h).

Some choices are sizes: each candidate runs the same calls. The others are bounds between two ways:
both run calls of several sizes, and the bound lies where the product of all times is the least.
"""

import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch import nn

import blockscale as bs
from blockscale.bench.groups import linear
from blockscale.bench.settings import Settings
from blockscale.kernels.cpu import _native, tuned

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


def layer(weight: str, text: str | None, n: int, k: int) -> nn.Module:
    """A linear layer [n, k] in a format, its inputs in another if one is given."""
    model = nn.Sequential(nn.Linear(k, n, bias=False))
    bs.quantize_(model, bs.Recipe(weight=weight, input=text))
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
    calls: list[Call] = [
        partial(bs.quantize, x, each) for each in ("mxfp4", "int8_channel", "nvfp4")
    ]
    return [*calls, *(q.dequantize for q in stored)]


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


def gain(below: Sequence[float], above: Sequence[float], bound: int, other: int) -> float:
    """The mean time with `bound`, in that with `other`."""
    logs = [math.log(a / b) for a, b in zip(below, above, strict=True)]
    return math.exp((sum(logs[:bound]) - sum(logs[:other])) / len(logs))


def questions_for(isa: str) -> Iterator[Size | Bound]:
    """The questions that there are with an instruction set."""
    few = isa in ("avx512", "avx512vnni", "amx")
    for each in QUESTIONS:
        if each.matrices and isa != "amx":
            continue
        if each.name.startswith("few_") and not few:
            continue
        yield each


# Before a run: what kernels choose by measurements, measured on this machine and kept.

Tuner = Callable[[str, str, tuple[int, int, int]], Any]


def tune(settings: Settings, say: Callable[[str], None], tuner: Tuner | None = None) -> None:
    """On CUDA, measure every recipe and shape of the run but those that have one way to run.

    On the CPU, measure its kernels' choices, which hold for every format and shape. Raises
    ValueError for a device that has no choices.
    """
    if settings.kind == "cpu":
        tune_cpu(say)
        return
    if settings.kind != "cuda":
        raise ValueError(f"--tune: the kernels of {settings.device} have no choices to measure")
    tuner = tuner or importlib.import_module("blockscale.kernels.cuda.tune").tune_linear
    recipes = [recipe for recipe in linear.recipes(settings) if settings.picks(recipe[0])]
    for (k, n), rows in settings.sizes.linear.items():
        for weight, inputs in recipes:
            text = str(bs.parse(inputs)) if inputs else ""
            try:
                for m in rows:
                    tuner(str(bs.parse(weight)), text, (m, n, k))
            except ValueError as error:
                say(f"not tuned: {linear.label(weight, inputs)}: {error}")
            else:
                say(f"tuned: {linear.label(weight, inputs)}, k={k}, n={n}")


# Measuring the choices of the CPU's kernels, and keeping those that are clearly faster.


CLEAR = 0.97  # of the time: what is no faster than this stays as it is unmeasured
_ROUNDS, _SAMPLE = 5, 2e-3  # samples of each; seconds of one, at least


def tune_cpu(
    say: Callable[[str], None],
    path: Path | None = None,
    questions: Iterable[Size | Bound] | None = None,
) -> dict[str, int]:
    """Measure every choice at torch's number of threads, and keep them for this kind of machine.

    path: the table to add to, by default this machine's
    questions: what is measured; None: all that there is with the instruction set in use

    Returns what was kept. Raises ValueError, before anything is measured, where the table cannot be
    read; the kernels then keep what they had.
    """
    tuned.lookup(_native.isa(), torch.get_num_threads())
    before = _native.tuning()
    by_name: dict[str, int] = {}
    usual = {name: numbers[0] for name, numbers in _native.tuning_bounds().items()}
    try:
        for each in questions or questions_for(_native.isa()):
            if each.name == "threaded_elements" and torch.get_num_threads() == 1:
                continue
            now = usual | by_name
            value, share = _size(each, now) if isinstance(each, Size) else _bound(each, now)
            by_name[each.name] = value
            say(f"tuned: {each.name} {usual[each.name]:,} -> {value:,}, {share:.3f} of the time")
    except BaseException:
        _native.set_tuning(before)
        raise
    tuned.record(_native, by_name, path)
    return by_name


def _size(each: Size, so_far: dict[str, int]) -> tuple[int, float]:
    """The best of its candidates, and its time in that of the usual one."""
    usual = so_far[each.name]
    calls = each.calls()
    candidates = dict.fromkeys({*each.candidates, usual}, calls)
    times = measure(candidates, lambda value: _native.set_tuning(so_far | {each.name: value}))
    share = {value: geometric_mean(own) for value, own in times.items()}
    best = min(share, key=share.__getitem__)
    names = best if share[best] < CLEAR * share[usual] else usual
    return names, share[names] / share[usual]


def _bound(each: Bound, so_far: dict[str, int]) -> tuple[int, float]:
    """The best bound, and the time with it in that with the usual one."""
    usual, (_, least, most) = so_far[each.name], _native.tuning_bounds()[each.name]
    below, above = [], []  # a bound that no size reaches leaves all to the way below
    for size in each.sizes:
        calls = {value: each.calls(size) for value in (most, least)}  # a weight keeps its way
        times = measure(calls, lambda value: _native.set_tuning(so_far | {each.name: value}))
        own = {v: geometric_mean(t) for v, t in times.items()}
        below.append(own[most])
        above.append(own[least])
    unit = 1024 if each.name == "weight_bytes" else 1
    cuts = [bound * unit for bound in each.cuts()]
    other = sum(size * unit < usual if each.above else size * unit <= usual for size in each.sizes)
    best = best_cut(below, above)
    share = gain(below, above, best, other)
    return (cuts[best], share) if share < CLEAR else (usual, 1.0)


def measure(
    calls: Mapping[int, Sequence[Call]], use: Callable[[int], None]
) -> dict[int, list[float]]:
    """{candidate: seconds of each of its calls}: the least of some samples, in turns."""
    best = {value: [math.inf] * len(own) for value, own in calls.items()}
    counts: list[int] = []
    for value, own in calls.items():
        use(value)
        for call in own:
            call()  # weights are made ready
        seconds = [_seconds(call, 1) for call in own]
        counts = counts or [max(1, int(_SAMPLE / max(each, 1e-9))) for each in seconds]
    for _ in range(_ROUNDS):
        for value, own in calls.items():
            use(value)
            for i, call in enumerate(own):
                best[value][i] = min(best[value][i], _seconds(call, counts[i]))
    return best


def _seconds(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
