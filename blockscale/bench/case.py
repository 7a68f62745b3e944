# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: cases, and the contestants that race in each."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from blockscale.bench.timing import Timing

Call = Callable[[], Any]
Targets = Mapping[str, tuple[str, float]]  # {figure: ("at_least" or "at_most", value)}
NO_KERNEL = "no .* kernel runs"  # how the registry's warning begins


@dataclass(frozen=True)
class Contestant:
    """One that races.

    kind: "ours", "peer" or "ceiling"
    note: what a reader must know to compare it
    bytes: those that it must move at least
    facts: figures that no clock gives, such as a cosine
    probe: whether to ask which backend runs it
    """

    name: str
    kind: Literal["ours", "peer", "ceiling"]
    call: Call
    note: str = ""
    bytes: int | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    targets: Targets = field(default_factory=dict)
    probe: bool = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keeps a peer's warnings, and ours about a missing kernel, which is recorded, in here."""
        with warnings.catch_warnings():
            if self.kind == "ours":
                warnings.filterwarnings("ignore", NO_KERNEL, UserWarning)
            else:
                warnings.simplefilter("ignore")
            yield


@dataclass(frozen=True)
class Skipped:
    """A contestant that does not race, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Case:
    """Contestants whose times are compared with each other.

    about: what it is, as plain data
    contestants: makes the data and all who race
    figures: (a contestant, its time, all times) -> what is told of it
    weight: its part of the run's time
    cold: one call a round, so that the others' data has left the cache by the next
    host: the processor's time is measured, wherever the work is done
    """

    name: str
    group: str
    about: Mapping[str, Any]
    contestants: Callable[[], Iterable[Contestant | Skipped]]
    figures: Callable[[Contestant, Timing, Mapping[str, Timing]], dict[str, float]]
    weight: float = 1.0
    cold: bool = False
    host: bool = False


def best(times: Mapping[str, Timing], prefix: str) -> float:
    """The shortest median, in seconds, of the contestants whose names begin with `prefix`."""
    return min(timing.median for name, timing in times.items() if name.startswith(prefix))


@dataclass(frozen=True)
class Peer:
    """Another library's way to do the same.

    build: what it makes depends on the kind, see blockscale/bench/peers/__init__.py
    reads: how often it reads its input, where it has less to find out than ours
    """

    name: str
    build: Callable[[], Any]
    note: str = ""
    reads: int | None = None
