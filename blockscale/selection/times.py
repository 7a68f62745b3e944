# SPDX-License-Identifier: BSD-3-Clause
"""How long layers take on this machine: float ones, and each candidate of them."""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from blockscale.calibration.batches import call
from blockscale.calibration.input_stats import Callback, watch
from blockscale.selection.candidates import Candidate, WeightOptions

# Memory that a call takes: the most that torch's allocators gave out at once while it ran.


def peak(call: Callable[[], Any], device: str) -> int:
    """Bytes above what was there before, the result included.

    Of tensors, whoever makes them. What native kernels take beside tensors (a tile for each thread)
    is not in it. On a CPU torch's profiler tells of every allocation; on CUDA the allocator does.
    """
    if device.partition(":")[0] == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated(device)) - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as result:
        output = call()
    most = now = 0
    for _, nbytes in sorted(_allocations(result)):
        now += nbytes
        most = max(most, now)
    del output
    return most


def _allocations(value: Any) -> Iterator[tuple[int, int]]:
    """(when, bytes; negative where they are given back)."""
    for event in value.profiler.kineto_results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Some builds of torch write two lines on standard error for each profile."""
    sys.stderr.flush()
    descriptor = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(descriptor, 2)
        os.close(descriptor)


_ROUNDS, _SAMPLE = 7, 2e-3  # samples of each layer; seconds of one, at least
_MOST = 2.0  # seconds that one layer may take in all


def layer_seconds(
    inputs: Mapping[nn.Module, Sequence[Tensor]],
    choices: Sequence[WeightOptions],
    candidates: Sequence[Candidate],
    more: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[tuple[str, str], float]:
    """{(choice, candidate): seconds of its layers for these inputs}; the candidate "" is float.

    more: other calls that race with them, which are in the result as (name, "")
    Layers of one shape that get inputs of one shape are timed once. All take turns, so that a
    machine that drifts drifts for all alike, and each finds its weight as cold as in the model.
    """
    calls: dict[Any, Callable[[], Any]] = {}
    keys: dict[tuple[str, str], list[Any]] = {}
    for choice in choices:
        for candidate in (None, *candidates):
            name = "" if candidate is None else candidate.name
            if candidate is not None and name not in choice.plans:
                continue
            result = None if candidate is None else choice.layers(candidate)
            for module, first in zip(choice.modules, choice.firsts, strict=True):
                for x in inputs.get(module, ()):
                    alike = (choice.kind, choice.shape, tuple(x.shape), x.dtype, name)
                    keys.setdefault((choice.name, name), []).append(alike)
                    layer = module if result is None else result[first]
                    calls.setdefault(alike, _bound(layer, x))
            keys.setdefault((choice.name, name), [])
    seconds = race(calls | dict(more or {}))
    data = {key: sum(seconds[each] for each in own) for key, own in keys.items()}
    return data | {(name, ""): seconds[name] for name in more or {}}


def inputs_of(
    model: nn.Module, choices: Sequence[WeightOptions], batch: Any
) -> dict[nn.Module, list[Tensor]]:
    """{layer: what it is called with for a batch}."""
    by_name: dict[nn.Module, list[Tensor]] = {m: [] for c in choices for m in c.modules}

    def keeping(module: nn.Module) -> Callback:
        def keep(x: Tensor, y: Any) -> None:
            del y
            by_name[module].append(x.detach())

        return keep

    with torch.no_grad(), watch({module: keeping(module) for module in by_name}):
        call(model, batch)
    return by_name


def _bound(layer: nn.Module, x: Tensor) -> Callable[[], Any]:
    forward = layer.forward  # without hooks, which are the user's
    return lambda: forward(x)


def race(calls: dict[Any, Callable[[], Any]], rounds: int = _ROUNDS) -> dict[Any, float]:
    """{key: seconds of a call}, the median of samples that are taken in turns."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            times = {key: _first(each) for key, each in calls.items()}
            samples: dict[Any, list[float]] = {key: [] for key in calls}
            for turn in range(rounds):
                order = list(calls) if turn % 2 == 0 else list(calls)[::-1]
                for key in order:
                    if turn and times[key] * turn > _MOST:
                        continue
                    samples[key].append(_sample(calls[key], times[key]))
    finally:
        if enabled:
            gc.enable()
    return {key: statistics.median(own) for key, own in samples.items()}


def _first(run: Callable[[], Any]) -> float:
    """Once for what a first call prepares, once to know how long it takes."""
    run()
    return _sample(run, 1.0)


def _sample(run: Callable[[], Any], expected: float) -> float:
    count = max(1, min(100, round(_SAMPLE / max(expected, 1e-9))))
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
