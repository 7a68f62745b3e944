# SPDX-License-Identifier: BSD-3-Clause
"""Before a run: what kernels choose by measurements, measured on this machine and kept."""

import importlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

import blockscale as bs
from blockscale.bench.choices import Bound, Call, Size, asked, best_cut, gain
from blockscale.bench.groups import linear
from blockscale.bench.settings import Settings
from blockscale.kernels.cpu import _native, tuned

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
        for weight, given in recipes:
            spelled = str(bs.parse(given)) if given else ""
            try:
                for m in rows:
                    tuner(str(bs.parse(weight)), spelled, (m, n, k))
            except ValueError as error:
                say(f"not tuned: {linear.label(weight, given)}: {error}")
            else:
                say(f"tuned: {linear.label(weight, given)}, k={k}, n={n}")


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
    found: dict[str, int] = {}
    usual = {name: numbers[0] for name, numbers in _native.tuning_bounds().items()}
    try:
        for each in questions or asked(_native.isa()):
            if each.name == "threaded_elements" and torch.get_num_threads() == 1:
                continue
            now = usual | found
            value, share = _size(each, now) if isinstance(each, Size) else _bound(each, now)
            found[each.name] = value
            say(f"tuned: {each.name} {usual[each.name]:,} -> {value:,}, {share:.3f} of the time")
    except BaseException:
        _native.set_tuning(before)
        raise
    tuned.record(_native, found, path)
    return found


def _size(each: Size, so_far: dict[str, int]) -> tuple[int, float]:
    """The best of its candidates, and its time in that of the usual one."""
    usual = so_far[each.name]
    calls = each.calls()
    candidates = dict.fromkeys({*each.candidates, usual}, calls)
    times = timed(candidates, lambda value: _native.set_tuning(so_far | {each.name: value}))
    share = {value: geometric_mean(own) for value, own in times.items()}
    best = min(share, key=share.__getitem__)
    taken = best if share[best] < CLEAR * share[usual] else usual
    return taken, share[taken] / share[usual]


def _bound(each: Bound, so_far: dict[str, int]) -> tuple[int, float]:
    """The best bound, and the time with it in that with the usual one."""
    usual, (_, least, most) = so_far[each.name], _native.tuning_bounds()[each.name]
    below, above = [], []  # a bound that no size reaches leaves all to the way below
    for size in each.sizes:
        calls = {value: each.calls(size) for value in (most, least)}  # a weight keeps its way
        times = timed(calls, lambda value: _native.set_tuning(so_far | {each.name: value}))
        own = {v: geometric_mean(t) for v, t in times.items()}
        below.append(own[most])
        above.append(own[least])
    unit = 1024 if each.name == "weight_bytes" else 1
    cuts = [cut * unit for cut in each.cuts()]
    other = sum(size * unit < usual if each.above else size * unit <= usual for size in each.sizes)
    best = best_cut(below, above)
    share = gain(below, above, best, other)
    return (cuts[best], share) if share < CLEAR else (usual, 1.0)


def timed(
    calls: Mapping[int, Sequence[Call]], use: Callable[[int], None]
) -> dict[int, list[float]]:
    """{candidate: seconds of each of its calls}: the least of some samples, in turns."""
    best = {value: [math.inf] * len(own) for value, own in calls.items()}
    counts: list[int] = []
    for value, own in calls.items():
        use(value)
        for call in own:
            call()  # weights are made ready
        once = [_seconds(call, 1) for call in own]
        counts = counts or [max(1, int(_SAMPLE / max(each, 1e-9))) for each in once]
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
