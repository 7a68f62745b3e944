# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: cases, and the contestants that race in each."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from blockscale.bench import peers
from blockscale.bench.timing import Timing
from blockscale.core.discover import import_all

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


# The contestants of other libraries, found in blockscale/bench/peers/.


Finish = Callable[[Peer, Any], Contestant]


def rivals(
    kind: str, wanted: Any, finish: Finish, made: dict[str, Any] | None = None
) -> Iterator[Contestant | Skipped]:
    """Everyone else for `wanted`, a request of `kind`; `finish` makes what a peer built race.

    made: what peers built earlier for the same request, by name, which is used again.
    """
    made = {} if made is None else made
    for module in import_all(peers.__name__, peers.__path__):
        offer = getattr(module, kind, None)
        library = module.__name__.rpartition(".")[2]
        if offer is None:
            continue
        if reason := module.unavailable():
            yield Skipped(library, reason)
            continue
        for peer in offer(wanted):
            yield _built(peer, finish, made)


def _built(peer: Peer, finish: Finish, made: dict[str, Any]) -> Contestant | Skipped:
    try:
        with hushed():
            if peer.name not in made:
                made[peer.name] = peer.build()
            return finish(peer, made[peer.name])
    except Exception as error:
        return Skipped(peer.name, told(error))


def told(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextmanager
def hushed() -> Iterator[None]:
    """No warnings and no log lines below errors, while another library is imported and set up."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
