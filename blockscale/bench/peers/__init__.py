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
    kind: str, op: Any, finish: Finish, peers_: dict[str, Any] | None = None
) -> Iterator[Contestant | Skipped]:
    """Everyone else for `wanted`, a request of `kind`; `finish` makes what a peer built race.

    made: what peers built earlier for the same request, by name, which is used again.
    """
    peers_ = {} if peers_ is None else peers_
    for module in import_all(peers.__name__, peers.__path__):
        offer = getattr(module, kind, None)
        library = module.__name__.rpartition(".")[2]
        if offer is None:
            continue
        if reason := module.unavailable():
            yield Skipped(library, reason)
            continue
        for peer in offer(op):
            yield _build(peer, finish, peers_)


def _build(peer: Peer, finish: Finish, data: dict[str, Any]) -> Contestant | Skipped:
    try:
        with quiet_libraries():
            if peer.name not in data:
                data[peer.name] = peer.build()
            return finish(peer, data[peer.name])
    except Exception as error:
        return Skipped(peer.name, error_line(error))


def error_line(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
