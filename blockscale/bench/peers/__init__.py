# SPDX-License-Identifier: BSD-3-Clause
"""The contestants of other libraries, found in blockscale/bench/peers/."""

from collections.abc import Callable, Iterator
from typing import Any

from blockscale.bench import peers
from blockscale.bench.requests import Contestant, Peer, Skipped
from blockscale.core import import_all
from blockscale.core.work import quiet_libraries

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
        with quiet_libraries():
            if peer.name not in made:
                made[peer.name] = peer.build()
            return finish(peer, made[peer.name])
    except Exception as error:
        return Skipped(peer.name, error_line(error))


def error_line(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
