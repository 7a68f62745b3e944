# SPDX-License-Identifier: BSD-3-Clause
"""Which process does what: work is dealt by what it costs, parts of the dearest to several.

Where a layer's weight is cut depends on the layer alone, and one process works in these parts, too:
what a product gives for a row may depend on how many rows it has, so that the same bits come out
whatever the number of processes is.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from blockscale.core.cuts import can_be_cut, line_of
from blockscale.core.format import Format
from blockscale.core.joined_weights import shares
from blockscale.core.pack import stored_shape
from blockscale.layers.plan import Plan


class Effort(NamedTuple):
    """What something takes, in units that all costs have.

    whole: in every process that does any part of it; each: for each of its `parts`
    """

    whole: float
    each: float = 0.0
    parts: int = 1

    def of(self, count: int) -> float:
        """What so many of its parts take."""
        return self.whole + self.each * count


class Deal(NamedTuple):
    """Who does what.

    who: {name: the process of each part}, neighbours in one process
    loads: what each process has to do
    """

    who: dict[str, list[int]]
    loads: list[float]


_NEAR = 1.05  # times the mean load: nothing is gained by dealing on


def deal(costs: Mapping[str, Effort], size: int, home: Mapping[str, int] | None = None) -> Deal:
    """Deal work to `size` processes so that the busiest has little to do.

    First each name goes to one process: its home, or, the dearest first, to who has least to do so
    far. Then the dearest of the busiest process goes to one process more, as long as that helps.
    """
    home, shares = home or {}, dict.fromkeys(costs, 1)
    best = _deal_shares(costs, shares, size, home)
    while max(best.loads) > _NEAR * sum(best.loads) / size:
        more = [shares | {n: shares[n] + 1} for n in _dearest(costs, shares, best)]
        deals = ((each, _deal_shares(costs, each, size, home)) for each in more)
        better = next(((s, d) for s, d in deals if _is_better(d, best)), None)
        if better is None:
            break
        shares, best = better
    return best


def _is_better(new: Deal, old: Deal) -> bool:
    """Whether the busiest process has less to do; of equal ones the next."""
    return sorted(new.loads, reverse=True) < sorted(old.loads, reverse=True)


def _dearest(costs: Mapping[str, Effort], shares: Mapping[str, int], deal: Deal) -> list[str]:
    """What the busiest process has of what more processes could do, the dearest first."""
    busiest, size = deal.loads.index(max(deal.loads)), len(deal.loads)
    able = [
        name
        for name, who in deal.who.items()
        if busiest in who and shares[name] < min(costs[name].parts, size)
    ]
    return sorted(able, key=lambda name: (-costs[name].of(deal.who[name].count(busiest)), name))


def _deal_shares(
    costs: Mapping[str, Effort], shares: Mapping[str, int], size: int, home: Mapping[str, int]
) -> Deal:
    """Each name to so many processes, none of them twice."""
    loads, who = [0.0] * size, dict[str, list[int]]()
    runs = [
        (name in home and shares[name] == 1, cost.of(len(run)), name, run)
        for name, cost in costs.items()
        for run in _runs(cost.parts, shares[name])
    ]
    for stays, cost, name, run in sorted(runs, key=lambda r: (not r[0], -r[1], r[2], r[3][0])):
        own = who.setdefault(name, [-1] * costs[name].parts)
        free = [home[name]] if stays else [rank for rank in range(size) if rank not in own]
        rank = min(free, key=lambda rank: (loads[rank], rank))
        for part in run:
            own[part] = rank
        loads[rank] += cost
    return Deal(who, loads)


def _runs(parts: int, count: int) -> list[range]:
    """Parts in `count` runs of neighbours, of nearly one length."""
    ends = [i * parts // count for i in range(count + 1)]
    return [range(ends[i], ends[i + 1]) for i in range(count)]


# Rows of a weight.

ROWS = 2048  # of a weight, at most, whose codes are chosen together


class LayerPart(NamedTuple):
    """Rows of a layer's weight [n, k]: the part of a number; all of them where there is one."""

    plan: Plan
    number: int
    rows: slice

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.plan.name} [{self.rows.start}:{self.rows.stop}]"


def parts_of(plan: Plan, algorithm: Any) -> list[LayerPart]:
    """The parts that codes of a layer's weight are chosen in by a weight algorithm.

    Several only if that says `by_rows`: no row's codes depend on another row, but for an outer
    scale that all rows have.
    """
    n, k = weight_shape(plan)
    count = -(-n // ROWS)
    if not getattr(algorithm, "by_rows", False) or not _of_rows(plan.format, (n, k)):
        count = 1
    ends = [i * n // max(count, 1) for i in range(count + 1)]
    return [LayerPart(plan, i, slice(ends[i], ends[i + 1])) for i in range(max(count, 1))]


def width(plan: Plan) -> int:
    """k of a layer's stored weight [n, k]."""
    return stored_shape(plan.parameter.shape, plan.layout)[-1]


def weight_shape(plan: Plan) -> tuple[int, int]:
    """[n, k] of a layer's weight as it is stored."""
    k = width(plan)
    return plan.parameter.numel() // max(k, 1), k


def _of_rows(fmt: Format, shape: tuple[int, int]) -> bool:
    """Whether nothing belongs to several rows but an outer scale, one for all."""
    if not can_be_cut(fmt):
        return False
    sizes = line_of(fmt, shape, 0).sizes
    above = sizes.pop("outer", 1)
    return set(sizes.values()) <= {1} and (above == 1 or not shares(fmt, shape))


def has_top(fmt: Format, shape: tuple[int, int]) -> bool:
    """Whether all rows of a weight have one outer scale."""
    return not shares(fmt, shape)


# What they cost, in products of float64 on an H200 (docs/scale.md, Calibration).

_A_COLUMN = 3e7  # products that take as long as the steps for one column, whatever its rows
_FACTOR = 1 / 24  # of k^3 products: the factor of H and its inverse


def effort_of_codes(plan: Plan, algorithm: Any) -> Effort:
    """What it takes to choose a layer's codes by GPTQ: a factor and the steps for each column,
    however few rows there are, and k^2 products for each row."""
    n, k = weight_shape(plan)
    count = len(parts_of(plan, algorithm))
    return Effort(_FACTOR * k**3 + _A_COLUMN * k, float(k) ** 2 * n / count, count)
