# SPDX-License-Identifier: BSD-3-Clause
"""Gram matrices X^T X of layers' inputs: products of some rows, their sums, and who has them.

Of wide rows a product is made in strips of its columns, so that little more is computed than what
lies on one side of its diagonal, and so that several processes can each have some of them: each
sums up its strips of the inputs in all processes, and in the end those who choose a layer's codes
get all of them.
"""

import weakref
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.dealing import Effort, width
from blockscale.calibration.input_stats import Callback, Size, rows_of, with_size
from blockscale.calibration.padding import Neighbours, neighbours_of, sum_of
from blockscale.calibration.ranks import Ranks
from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.pack import of_convolution
from blockscale.layers.assembly import Supplied
from blockscale.layers.plan import Plan

_STRIP = 256  # columns of a product that are computed at once
_STRIP_ELSEWHERE = 2048  # where fewer would not keep a GPU busy


def strips_of(k: int, device: torch.device) -> list[slice]:
    """The columns of a product X^T X [k, k] that are computed at once: all, or so many. Of such a
    strip [columns, k - first], what lies left of its first column is in strips before it."""
    width = _STRIP if device.type == "cpu" else _STRIP_ELSEWHERE
    if k < 2 * width:
        return [slice(0, k)]
    return [slice(first, min(first + width, k)) for first in range(0, k, width)]


class Gram(NamedTuple):
    """X^T X [k, k] of some rows, or strips of it, one after another [elements]; how many they were,
    how many were left out, and how near neighbours are."""

    sum: Tensor
    rows: int
    skipped: int
    neighbours: Neighbours | None = None


def product_of(x: Tensor, strips: Sequence[slice] = ()) -> Gram:
    """X [rows, k] float32, at most a few thousand rows -> their product, without rows that hold a
    NaN or an infinity.

    strips: those of the product that are wanted, instead of all of it; the first of all tells how
        near neighbours are
    """
    with float32_inside(x):
        if strips:
            rest = x if bool(x.isfinite().all()) else x[x.isfinite().all(-1)]
            near = neighbours_of(rest) if strips[0].start == 0 else None
            return Gram(_strips(rest, strips), len(rest), len(x) - len(rest), near)
        product = _symmetric(x)
        if bool(product.diagonal().isfinite().all()):  # so x is: a square is never below 0
            return Gram(product, len(x), 0, neighbours_of(x))
        rest = x[x.isfinite().all(-1)]
        return Gram(_symmetric(rest), len(rest), len(x) - len(rest), neighbours_of(rest))


def _symmetric(x: Tensor) -> Tensor:
    """X^T X."""
    k, strips = x.shape[1], strips_of(x.shape[1], x.device)
    return x.T @ x if len(strips) == 1 else whole_of([(strips, _strips(x, strips))], k)


def _strips(x: Tensor, strips: Sequence[slice]) -> Tensor:
    """Strips of X^T X, in order, one after another."""
    k = x.shape[1]
    result = x.new_empty(size_of(strips, k))
    for some, strip in _views(result, strips, k):
        torch.mm(x[:, some].T, x[:, some.start :], out=strip)
    return result


def size_of(strips: Sequence[slice], k: int) -> int:
    """Elements of strips of a product [k, k]."""
    return sum((some.stop - some.start) * (k - some.start) for some in strips)


def _views(data: Tensor, strips: Sequence[slice], k: int) -> Iterator[tuple[slice, Tensor]]:
    """Each of the strips [columns, k - first] that lie one after another."""
    sizes = [size_of([some], k) for some in strips]
    for some, strip in zip(strips, data.split(sizes), strict=True):
        yield some, strip.view(some.stop - some.start, k - some.start)


def whole_of(parts: Iterable[tuple[Sequence[slice], Tensor]], k: int) -> Tensor:
    """X^T X [k, k] from all its strips, in parts of some that lie one after another."""
    result: Tensor | None = None
    for strips, data in parts:
        result = data.new_empty(k, k) if result is None else result
        for some, strip in _views(data, strips, k):
            result[some.stop :, some] = strip[:, some.stop - some.start :].T
            result[some, some.start :] = strip
    assert result is not None
    return result


class GramCollector:
    """Gathers the gram matrix of a layer's inputs alone, or strips of it.

    features: k; strips: as `product_of` takes them
    sum: X^T X [k, k] float64 of `rows` rows, or its strips; neighbours: how near they are
    """

    def __init__(self, features: int, device: torch.device, strips: Sequence[slice] = ()):
        self.strips = strips
        self._size = (size_of(strips, features),) if strips else (features, features)
        self._device = device
        self._sum: Tensor | None = None
        self.rows = self.skipped = 0
        self.neighbours: Neighbours | None = None

    @property
    def sum(self) -> Tensor:
        """Zeros as long as nothing was added, which take no memory here."""
        if self._sum is None:
            return torch.zeros(self._size, dtype=torch.float64, device=self._device)
        return self._sum

    @sum.setter
    def sum(self, value: Tensor) -> None:
        self._sum = value

    def add(self, product: Gram) -> None:
        """What `product_of` made of further rows."""
        self.sum += product.sum
        self.rows += product.rows
        self.skipped += product.skipped
        self.neighbours = sum_of(self.neighbours, product.neighbours)

    def result(self) -> Tensor:
        """X^T X / rows [k, k] float64. Raises ValueError if nothing was seen."""
        if self.rows == 0:
            raise ValueError("it saw no data")
        return self.sum / self.rows


# Layers side by side have one input, such as query, key and value: its products are made once.


class LastProducts:
    """The products of the input that was seen last, as long as somebody holds it unchanged.

    Of a longer input, which comes in pieces, they are added up.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Tensor] | None = None
        self._key: Hashable = None
        self._product: Gram | None = None

    def of(
        self,
        x: Tensor,
        alike: Hashable,
        rows: Callable[[], Iterable[Tensor]],
        strips: Sequence[slice] = (),
    ) -> Iterator[Gram]:
        """The product of x [...], from its rows if it is not the last one; none without rows.

        alike: equal for layers that make the same rows of one input
        strips: as `product_of` takes them
        """
        if x.is_inference():  # nobody could tell whether it was changed
            yield from (product_of(each, strips) for each in rows())
            return
        key = alike, x._version, [(some.start, some.stop) for some in strips]
        if self._of is None or self._of() is not x or self._key != key:
            self._product = _sum(product_of(each, strips) for each in rows())
            self._of, self._key = weakref.ref(x), key
        if self._product is not None:
            yield self._product


def _sum(products: Iterable[Gram]) -> Gram | None:
    """One product of all; their float32 sums are added up in float64."""
    gram: Gram | None = None
    for each in products:
        if gram is None:
            gram = each
        else:
            total = gram.sum.double() + each.sum
            neighbours = sum_of(gram.neighbours, each.neighbours)
            gram = Gram(total, gram.rows + each.rows, gram.skipped + each.skipped, neighbours)
    return gram


# Who sums up what, of layers' inputs while a model runs.


def effort_of_gram(plan: Plan) -> Effort:
    """What it takes to sum up a layer's gram matrix."""
    k = width(plan)
    count = len(columns_of(plan))
    return Effort(0.0, float(k) ** 2 / count, count)


def columns_of(plan: Plan) -> list[slice]:
    """The strips that a layer's gram matrix is summed up in (`strips_of`), the first, the last, the
    second and so on: neighbours have about the same size together."""
    k = width(plan)
    strips = strips_of(k, plan.parameter.device)
    return [strips[i // 2 if i % 2 == 0 else -(i // 2) - 1] for i in range(len(strips))]


class GramSums:
    """What has to be told of layers' inputs, and what gathers their gram matrices.

    plans: the layers; others: experts beside them, and what else gathers of theirs
    experts: names of layers whose statistics may be filled up with others'; they are not cut
    callbacks: of all of these; own: what this process has gathered of each layer
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        places: Mapping[str, Supplied],
        ranks: Ranks,
        experts: Container[str] = (),
        others: Iterable[tuple[Plan, GramCollector]] = (),
    ):
        self._places, self._ranks, self._experts = places, ranks, experts
        self._plans = [plan for plan in plans if plan.name not in experts]
        self._last = LastProducts()
        self.callbacks: dict[str, Callback] = {}
        self.own: dict[str, GramCollector] = {}
        self._strips = {plan.name: self._strips_by_process(plan) for plan in plans}
        for plan in plans:
            self._begin(plan)
        for plan, into in others:
            self.callbacks[plan.name] = self._callback(plan, {ranks.owner(plan.name): into})

    def _strips_by_process(self, plan: Plan) -> dict[int, list[slice]]:
        """Which strips each process sums up; of an expert whose statistics may be filled up no
        strips, but the whole."""
        if plan.name in self._experts:
            return {self._ranks.owner(plan.name): []}
        every: dict[int, list[slice]] = {}
        for number, strip in enumerate(columns_of(plan)):
            every.setdefault(self._ranks.owner(plan.name, number), []).append(strip)
        return {rank: sorted(strips, key=lambda s: s.start) for rank, strips in every.items()}

    def _begin(self, plan: Plan) -> None:
        k = width(plan)
        device, strips = plan.parameter.device, self._strips[plan.name]
        every = {rank: GramCollector(k, device, some) for rank, some in strips.items()}
        self.own[plan.name] = every.get(self._ranks.rank, GramCollector(k, device))
        self.callbacks[plan.name] = self._callback(plan, every)

    def _callback(self, plan: Plan, collectors: Mapping[int, GramCollector]) -> Callback:
        """What tells each process that sums up something; all know of all of them."""
        adds = [
            self._ranks.at_process(rank, self._adder(plan, into))
            for rank, into in collectors.items()
        ]

        def add(x: Tensor, size: Size) -> None:
            for each in adds:
                each(x, size)

        return with_size(add)

    def _adder(self, plan: Plan, into: GramCollector) -> Callable[[Tensor, Size], None]:
        before = self._places[plan.name].before
        last = self._last  # callbacks that knew of this object would keep its sums alive
        alike = (width(plan), plan.layout) if before is None else id(before)

        def add(x: Tensor, size: Size) -> None:
            rows = partial(rows_of, plan, x, before, size)
            products: Iterable[Gram]
            if of_convolution(plan.layout):
                products = (product_of(each, into.strips) for each in rows())
            else:
                products = last.of(x, alike, rows, into.strips)
            for product in products:
                into.add(product)

        return add

    def result(self, users: Callable[[Plan], set[int]]) -> dict[str, Tensor]:
        """The matrices X^T X / rows [k, k] float64 of layers that saw rows, in the processes that
        use them; none of experts that are not cut."""
        grams = {}
        every = self._ranks.together(lambda: {n: own.rows for n, own in self.own.items()})
        for plan in self._plans:
            rows = max(each[plan.name] for each in every)
            whole = self._whole(plan, users(plan)) if rows else None
            if whole is not None:
                grams[plan.name] = whole.div_(rows)
        return grams

    def _whole(self, plan: Plan, users: set[int]) -> Tensor | None:
        """X^T X of a layer, in the processes that need it."""
        k, ranks = width(plan), self._ranks
        strips, own = self._strips[plan.name], self.own[plan.name]
        every = [(own.strips, own.sum)]
        if len(strips) > 1 or set(strips) != users:
            sums = {ranks.rank: own.sum} if own.rows else {}
            every = [
                (some, ranks.broadcast(sums.get(rank), size_of(some, k), rank))
                for rank, some in strips.items()
            ]
        return whole_of(every, k) if ranks.rank in users else None
