# SPDX-License-Identifier: BSD-3-Clause
"""Samples that lie in several processes: each computes those of its calls, and sums are added up
in the order of the calls' global numbers, so that they do not depend on how many there are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from blockscale.calibration.algorithms.learned.samples import (
    NEAR,
    Row,
    Sample,
    Samples,
    join,
)
from blockscale.calibration.block_calls import BlockCall, LazySequence
from blockscale.calibration.ranks import Ranks


class DealtSamples(Samples):
    """Rows of the calls of all processes. A part is rows of one call, in its process: rows of
    several calls are never run together, as which ones could be would depend on the processes.

    ranks: whose calls they are; the others as of `Samples`. Whether rows may be taken apart is
    tried on the first call of all.
    """

    def __init__(
        self,
        calls: Sequence[BlockCall],
        targets: Sequence[Tensor],
        run: Callable[[BlockCall], Tensor],
        ranks: Ranks,
    ):
        self._ranks = ranks
        own = {ranks.number(b): tuple(target.shape) for b, target in enumerate(targets)}
        every = ranks.together(lambda: own)
        by_name = dict(sorted((i, shape) for each in every for i, shape in each.items()))
        n = ranks.size
        self._calls = LazySequence(len(by_name), lambda i: calls[i // n])  # those that are here
        self._targets = LazySequence(len(by_name), lambda i: targets[i // n])
        self._shapes = [torch.Size(shape) for shape in by_name.values()]
        self._sizes = [shape[0] if len(shape) > 1 else 1 for shape in self._shapes]
        self._apart = True
        self._apart = ranks.together(lambda: ranks.rank > 0 or self._comes_apart(run))[0]
        self.rows = [(i, r) for i, n in enumerate(self._sizes) for r in range(n)]
        if not self._apart:
            self.rows = [(i, 0) for i in range(len(self._sizes))]

    def _comes_apart(self, run: Callable[[BlockCall], Tensor]) -> bool:
        """Whether a row of the first call gives the same alone."""
        if self._sizes[0] < 2:
            return True
        try:
            alone, whole = run(self._rows(0, [0]).call), run(self._calls[0])[:1]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        same = alone.shape == whole.shape
        return same and bool((alone - whole).abs().mean() <= NEAR * whole.abs().mean())

    def positions(self, row: Row) -> int:
        every = prod(self._shapes[row[0]][:-1])
        return max(every // self._sizes[row[0]] if self._apart else every, 1)

    def own(self, rows: Sequence[Row]) -> Iterator[tuple[int, Sample]]:
        """The parts of these rows that are of this process's calls, with the calls' numbers, in
        their order."""
        of_call: dict[int, list[int]] = {}
        for i, r in rows:
            of_call.setdefault(i, []).append(r)
        for i in sorted(of_call):
            if i % self._ranks.size == self._ranks.rank:
                yield i, self._rows(i, sorted(of_call[i]))

    def _rows(self, i: int, rows: list[int]) -> Sample:
        if not self._apart:
            return Sample(self._calls[i], self._targets[i])
        return join([self._piece(i, rows)])

    def sum_of(self, number: Callable[[Sample], float], rows: Sequence[Row]) -> float:
        """As `Samples.sum_of`: numbers of all calls, added up in their order."""
        own = self._ranks.together(lambda: {i: number(part) for i, part in self.own(rows)})
        every = sorted((i, value) for each in own for i, value in each.items())
        return sum(value for _, value in every)

    def descend(
        self,
        error: Callable[[Sample], Tensor],
        rows: Sequence[Row],
        values: Mapping[str, Tensor],
    ) -> None:
        """As `Samples.descend`: gradients of all calls, added up in their order."""
        gradients: dict[int, list[Tensor | None]] = {}

        def local() -> dict[int, list[bool]]:
            for i, part in self.own(rows):
                result = torch.autograd.grad(error(part), list(values.values()), allow_unused=True)
                gradients[i] = list(result)
            return {i: [g is not None for g in each] for i, each in gradients.items()}

        every = [shapes for each in self._ranks.together(local) for shapes in each.values()]
        some = [any(column) for column in zip(*every, strict=True)]
        results = [value for value, any_ in zip(values.values(), some, strict=True) if any_]
        flat = {
            i: torch.cat([
                (torch.zeros_like(value) if g is None else g).flatten()
                for value, g, any_ in zip(values.values(), each, some, strict=True)
                if any_
            ])
            for i, each in gradients.items()
        }  # fmt: skip
        calls = sorted({i for i, _ in rows})
        total = _summed(flat, calls, sum(value.numel() for value in results), self._ranks)
        for value, part in zip(results, total.split([v.numel() for v in results]), strict=True):
            value.grad = part.view(value.shape)


def _summed(flat: Mapping[int, Tensor], calls: Sequence[int], size: int, ranks: Ranks) -> Tensor:
    """{call: its gradient [size]} -> the sum of those of all processes [size], each element added
    in the order of the calls. Each process adds a slice of all gradients, and gives it to all.

    calls: the numbers of all, in order
    """
    width = -(-size // ranks.size)
    own = sorted(flat)
    padded = torch.zeros(len(own), ranks.size * width, device=ranks.device)
    for row, i in enumerate(own):
        padded[row, :size] = flat[i]
    slices = padded.view(len(own), ranks.size, width).transpose(0, 1).contiguous()
    parcels = [part.flatten().view(torch.uint8) for part in slices]
    counts = [len([i for i in calls if i % ranks.size == rank]) for rank in range(ranks.size)]
    incoming = ranks.swap(parcels, [count * width * 4 for count in counts])
    rows = [iter(part.clone().view(torch.float32).view(-1, width)) for part in incoming]
    total = torch.zeros(width, device=ranks.device)
    for i in calls:
        total += next(rows[i % ranks.size])
    return ranks.join_parts(total)[:size]
