# SPDX-License-Identifier: BSD-3-Clause
"""Clocks and races: contestants take turns, so that a machine that drifts drifts for all alike."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from blockscale.core.torch_private import sleep_on_gpu

_SAMPLE = 5e-4  # seconds: what is shorter is called several times in one sample
_MOST_CALLS = 1000
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 200
_FAR_TOO_SLOW = 20  # times its share of the time: called once in all
_HEAD_START = 400_000  # cycles that a GPU is kept busy while the calls of a sample are sent to it

Clock = Callable[[Callable[[], Any], int], float]


class Racing(Protocol):
    """What a race needs of a contestant."""

    @property
    def name(self) -> str: ...

    @property
    def call(self) -> Callable[[], Any]: ...

    def quiet(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median and the least of `rounds` samples of `calls` calls each."""

    median: float
    minimum: float
    rounds: int
    calls: int


def clock(device: str, host: bool = False) -> Clock:
    """(call, times) -> seconds of all calls, on `device`. ValueError if there is none.

    host: the processor's time for a call, where that is more than a GPU's for its kernels.
    """
    if device == "cpu":
        return _wall
    if device.partition(":")[0] != "cuda":
        raise ValueError(f"cannot measure on device {device!r}; choose from cpu, cuda")
    if not torch.cuda.is_available():
        raise ValueError(f"device {device!r}: torch finds no CUDA device here")
    return _launch_time if host else _events


def _wall(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - start


def _events(call: Callable[[], Any], times: int) -> float:
    """A GPU's own time. It is kept busy at first, so that it never waits for the next call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    sleep_on_gpu(_HEAD_START)
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _launch_time(call: Callable[[], Any], times: int) -> float:
    """The time in which calls are sent to a GPU that has nothing else to do."""
    torch.cuda.synchronize()
    seconds = _wall(call, times)
    torch.cuda.synchronize()
    return seconds


class Racer:
    """A contestant with its samples. Made, it has been called: once to warm up, once to see."""

    def __init__(self, contestant: Racing, share: float, clock: Clock, cold: bool = False):
        """share: seconds it may take; cold: one call a sample."""
        self.contestant, self._share, self._clock = contestant, share, clock
        self.samples: list[float] = []
        self.calls, self._seconds = 1, 0.0
        seconds = self._time()
        if seconds < _FAR_TOO_SLOW * share:  # the first call grew the heap and read code from disk
            seconds = self._time()
        self._slow = seconds > share
        if self._slow:
            self.samples.append(seconds)
        elif not cold:
            self.calls = min(max(1, round(_SAMPLE / max(seconds, 1e-9))), _MOST_CALLS)

    def _time(self) -> float:
        with self.contestant.quiet():
            seconds = self._clock(self.contestant.call, self.calls)
        self._seconds += seconds
        return seconds / self.calls

    @property
    def goes_on(self) -> bool:
        """Whether it takes part in another round."""
        rounds = len(self.samples)
        if self._slow or rounds >= _MOST_ROUNDS:
            return False
        return rounds < _LEAST_ROUNDS or self._seconds < self._share

    def sample(self) -> None:
        """Take one more."""
        self.samples.append(self._time())

    @property
    def timing(self) -> Timing:
        """What its samples say."""
        middle = statistics.median(self.samples)
        return Timing(middle, min(self.samples), len(self.samples), self.calls)


def race(racers: Sequence[Racer]) -> dict[str, Timing]:
    """{name: its timing}, taken in rounds, every other one backwards."""
    with _no_collection():
        while going := [racer for racer in racers if racer.goes_on]:
            for racer in going:
                racer.sample()
            racers = racers[::-1]
    return {racer.contestant.name: racer.timing for racer in racers}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is collected between races, not within a sample."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
