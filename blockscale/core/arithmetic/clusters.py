# SPDX-License-Identifier: BSD-3-Clause
"""k-means in one dimension, the same bits everywhere: tables of learned codebooks.

Numbers become integers of 2^-30, so that sums are exact in any order; what is rounded is rounded
by single float64 operations in a fixed order, on the CPU.
"""

import numpy as np
import torch
from torch import Tensor

FRACTION = 30  # bits
LARGEST = 8.0  # numbers beyond are taken for it: they are in steps of their block, about 1
POINTS = 4096  # at most so many are clustered exactly
ROUNDS = 100  # of Lloyd's iteration, at most


def learn(y: Tensor, count: int) -> Tensor:
    """y [...] float32 -> the `count` values nearest to its finite numbers: float32, ascending.

    The squared error is the least there is if y has at most POINTS distinct numbers (by dynamic
    programming: Wang and Song, "Ckmeans.1d.dp", R Journal 2011). Else that of its histogram of
    POINTS bins is, and Lloyd's iteration goes on from there with all numbers, never to a larger
    error. With fewer distinct numbers than `count`, the last is repeated. Without any: even steps
    from -1 to 1.
    """
    flat = y.detach().reshape(-1).cpu()
    flat = flat[flat.isfinite()].clamp(-LARGEST, LARGEST).double()
    if flat.numel() == 0:
        return torch.linspace(-1, 1, count, dtype=torch.float64).to(torch.float32)
    units = (flat * 2.0**FRACTION).round().long().sort().values.numpy()
    starts = _distinct(units)
    bins = len(starts) > POINTS
    if bins:
        width = (int(units[-1]) - int(units[0])) // POINTS + 1
        starts = _distinct((units - units[0]) // width)
    sums = np.concatenate([[0], np.cumsum(units)])
    places = np.append(starts, len(units))
    cuts = places[_optimal(places, sums[places], min(count, len(starts)))]
    if bins:
        cuts = _lloyd(units, sums, cuts)
    centres = _centres(sums, cuts) / 2.0**FRACTION
    centres = np.append(centres, np.repeat(centres[-1:], count - len(centres)))
    return torch.from_numpy(centres).to(torch.float32)


def _distinct(ascending: np.ndarray) -> np.ndarray:
    """Where each distinct number begins."""
    return np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))


def _centres(sums: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The mean of each cluster; cuts: where clusters begin, and the end."""
    means: np.ndarray = np.diff(sums[cuts]).astype(np.float64) / np.diff(cuts)
    return means


def _optimal(places: np.ndarray, sums: np.ndarray, count: int) -> np.ndarray:
    """Points with counts and sums up to each -> the points at which `count` clusters begin.

    The squared error is what does not depend on clusters minus the sum of (sum of one)² / size; of
    equal errors the one with earlier cuts is taken.
    """
    size, points = places.astype(np.float64), len(places) - 1
    total = (sums - sums[0]).astype(np.float64)
    gain = np.full(points + 1, -np.inf)
    gain[0] = 0.0
    choice = np.zeros((count + 1, points + 1), dtype=np.int64)
    for cluster in range(1, count + 1):
        gain, choice[cluster] = _layer(gain, size, total, cluster)
    cuts = [points]
    for cluster in range(count, 0, -1):
        cuts.append(int(choice[cluster, cuts[-1]]))
    return np.array(cuts[::-1])


def _layer(
    before: np.ndarray, size: np.ndarray, total: np.ndarray, cluster: int
) -> tuple[np.ndarray, np.ndarray]:
    """One more cluster: the largest gain for the first j points, and where the cluster begins.

    The best beginning never falls as j rises, so each j searches between those of its neighbours,
    which were found at half the distance (divide and conquer, all of one distance at once).
    """
    points = len(size) - 1
    gain = np.full(points + 1, -np.inf)
    best = np.zeros(points + 1, dtype=np.int64)
    solutions = np.array(
        [cluster - 1, points + 1]
    )  # sentinels: before the first and after the last
    limits = np.array([cluster - 1, points])
    while True:
        gaps = np.flatnonzero(np.diff(solutions) > 1)
        if len(gaps) == 0:
            return gain, best
        middle = (solutions[gaps] + solutions[gaps + 1]) // 2
        low = limits[gaps]
        high = np.maximum(np.minimum(limits[gaps + 1], middle - 1), low)
        lengths = high - low + 1
        first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        end = np.repeat(middle, lengths)
        start = np.arange(lengths.sum()) - np.repeat(first - low, lengths)
        difference = total[end] - total[start]
        gains = before[start] + difference * (difference / (size[end] - size[start]))
        top = np.maximum.reduceat(gains, first)
        equal = np.flatnonzero(gains == np.repeat(top, lengths))
        place = equal[np.searchsorted(equal, first)]  # the first of the largest
        gain[middle], best[middle] = top, start[place]
        order = np.argsort(np.append(solutions, middle), kind="stable")
        limits = np.append(limits, start[place])[order]
        solutions = np.append(solutions, middle)[order]


def _lloyd(units: np.ndarray, sums: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Cuts halfway between means, means between cuts, until nothing moves."""
    numbers = units.astype(np.float64)
    for _ in range(ROUNDS):
        centres = _centres(sums, cuts)
        middles = (centres[1:] + centres[:-1]) / 2
        inside = np.searchsorted(numbers, middles, side="right")
        borders = np.concatenate([[0], inside, [len(units)]])
        if np.array_equal(borders, cuts) or np.any(np.diff(borders) == 0):
            return cuts
        cuts = borders
    return cuts
