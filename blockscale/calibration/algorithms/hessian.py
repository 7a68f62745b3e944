# SPDX-License-Identifier: BSD-3-Clause
"""The Hessian of an output error, X Xᵀ: how it is collected, and the error that it gives."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.layers.before import Before
from blockscale.ops.quantize import fake_quantize

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats


# What weight algorithms know of a layer's inputs: their gram matrix X^T X / rows.


def check_gram(gram: Tensor, k: int, layer: str) -> Tensor:
    """Gram [k, k] -> float64 and exactly symmetric. Raises ValueError if it is no gram matrix."""
    if tuple(gram.shape) != (k, k):
        raise ValueError(
            f"{layer}: expected the Gram matrix [{k}, {k}] of its inputs, found {tuple(gram.shape)}"
        )
    wide = gram.detach().double()
    if not bool(wide.isfinite().all()):
        raise ValueError(
            f"{layer}: the Gram matrix of its inputs holds NaN or infinity: calibrate on "
            "finite inputs, or leave the layer in float"
        )
    diagonal = wide.diagonal()
    if bool((diagonal < 0).any()):
        raise ValueError(
            f"{layer}: the Gram matrix of its inputs has a negative diagonal, which no X^T X "
            "has: compute it again"
        )
    # float32 sums of n products are off by about sqrt(n) * 2^-24 of the diagonal's size
    slack = 1e-3 * float(diagonal.max()) if k else 0.0
    if bool(((wide - wide.T).abs() > slack).any()):
        raise ValueError(
            f"{layer}: the Gram matrix of its inputs is not symmetric, as every X^T X is: "
            "compute it again"
        )
    return (wide + wide.T) / 2


def checked_drift(drift: Tensor, h: Tensor, layer: str) -> Tensor:
    """Drift [k, k], Xq^T (Xf - Xq) / rows, as float64 where h is. Raises ValueError for others."""
    if drift.shape != h.shape:
        raise ValueError(
            f"{layer}: expected the drift {list(h.shape)} of its inputs, found {list(drift.shape)}"
        )
    wide = drift.detach().to(h.device, torch.float64)
    if not bool(wide.isfinite().all()):
        raise ValueError(
            f"{layer}: the drift of its inputs holds NaN or infinity: calibrate on finite inputs"
        )
    return wide


_TRIES = 16  # each with ten times the damping


def without_dead(h: Tensor) -> tuple[Tensor, int]:
    """H with the mean of its diagonal for inputs that were always 0, and how many those are.

    The rest of their rows and columns is 0 in any X^T X: they neither give nor take errors.
    """
    dead = h.diagonal() == 0
    count = int(dead.sum())
    if not count:
        return h, 0
    mean = h.diagonal()[~dead].mean() if count < len(h) else h.new_ones(())
    return h + torch.diag(dead * mean), count


def backwards_factor(h: Tensor, damping: float, layer: str) -> tuple[Tensor, float]:
    """Symmetric H [k, k] float64 -> upper R with R R^T = H + damping · mean diag, the damping.

    R is the Cholesky factor of H backwards. The damping is raised tenfold until there is one.
    """
    size = float(h.diagonal().mean()) if len(h) else 0.0
    one = torch.eye(len(h), dtype=h.dtype, device=h.device)
    for _ in range(_TRIES):
        backwards, failure = torch.linalg.cholesky_ex((h + damping * size * one).flip(0, 1))
        if not int(failure):
            return backwards.flip(0, 1), damping
        damping = max(10 * damping, 1e-6)
    raise ValueError(
        f"{layer}: the Gram matrix of its inputs has no Cholesky factor, even with damping "
        f"{damping / 10:g}: it is not a sum of X^T X; compute it again"
    )


def inverse_factor(h: Tensor, damping: float, layer: str) -> tuple[Tensor, float]:
    """Symmetric H [k, k] float64 -> upper U with U^T U = (H + damping · mean diag)^-1, the damping.

    U is the inverse of R in H = R R^T with R upper: one factorization and no inverse of H, which
    the paper's code computes and factors again.
    """
    r, damping = backwards_factor(h, damping, layer)
    one = torch.eye(len(h), dtype=h.dtype, device=h.device)
    return torch.linalg.solve_triangular(r, one, upper=True), damping


class Inputs:
    """What GPTQ knows of a layer's inputs, which all rows of its weight have.

    h: [k, k] float64, their gram matrix, the mean of its diagonal for inputs that were always 0
    dead: how many those are; layer: for errors
    """

    def __init__(self, gram: Tensor, k: int, layer: str):
        self.layer = layer
        self.h, self.dead = without_dead(check_gram(gram, k, layer))

    def factors(self, damping: float, *, act_order: bool) -> "Factors":
        """The factor of the inverse H, permuted. act_order: columns with large inputs first."""
        order = torch.arange(len(self.h), device=self.h.device)
        if act_order:
            order = self.h.diagonal().argsort(descending=True, stable=True)
        factor, most = inverse_factor(self.h[order][:, order], damping, self.layer)
        return Factors(factor, order, most, most * float(self.h.diagonal().mean()))

    def shift(self, drift: Tensor, part: float, damping: float) -> "Shift":
        """What moves weights by a `part` of the drift, Xq^T (Xf - Xq) / rows [k, k]."""
        r, _ = backwards_factor(self.h, damping, self.layer)
        return Shift(r, part * checked_drift(drift, self.h, self.layer))


class Shift(NamedTuple):
    """Moves weights for inputs Xf to where they give nearest to the same outputs for inputs Xq: the
    least squares solution of Xq T = Xf W is W + H^-1 drift W.

    factor: upper R [k, k] float64 with R R^T = H, damped; drift: [k, k] float64
    """

    factor: Tensor
    drift: Tensor

    def of(self, weight: Tensor) -> Tensor:
        """Weight W [k, n] float64 -> T."""
        correction = torch.linalg.solve_triangular(self.factor, self.drift @ weight, upper=True)
        return weight + torch.linalg.solve_triangular(self.factor.T, correction, upper=False)


class Factors(NamedTuple):
    """U [k, k] float64, upper, with U^T U = H^-1 of the permuted H; the order of columns; the
    damping in parts of H's mean diagonal, and what that adds to the diagonal."""

    factor: Tensor
    order: Tensor
    damping: float
    plus: float


def importance_of(gram: Tensor | None, k: int, layer: str) -> tuple[Tensor | None, list[str]]:
    """Gram [k, k] -> its diagonal [k], how much each input's errors count, and notes."""
    if gram is None:
        return None, ["no data about its inputs: all columns have the same weight"]
    diagonal = check_gram(gram, k, layer).diagonal()
    if not bool((diagonal > 0).any()):
        return None, ["all its inputs were 0: all columns have the same weight"]
    return torch.where(diagonal > 0, diagonal, diagonal[diagonal > 0].min()), []


def check_weighting(algorithm: str, weighting: str) -> None:
    """Raise ValueError unless errors count by "gram" or, "none", all the same."""
    if weighting not in ("none", "gram"):
        raise ValueError(f"{algorithm}: weighting must be 'none' or 'gram', got {weighting!r}")


# Which transform leaves a layer's output nearest to what it was: the transforms' one criterion.

SAME = 1e-6  # errors that are nearer than this, relatively, are equal but for summation


class OutputError:
    """Measures candidates for one layer: sum (x @ w.T - Q(x') @ Q(w').T)² over its sample of rows.

    Q is the format itself, weights by absmax; x' is quantized only where the layer's input is, by
    scales chosen from the sample. Formats that round by chance are measured with nearest_even.
    """

    @torch.no_grad()
    def __init__(
        self,
        weight: Tensor,
        fmt: Format,
        input_fmt: Format | None,
        stats: "InputStats",
        layer: str,
    ):
        """Weight [n, k] and its format; `stats` of the inputs X [rows, k]. Raises ValueError where
        they do not fit together."""
        k = weight.shape[-1]
        if weight.ndim != 2 or tuple(stats.amax.shape) != (k,) or stats.sample.shape[-1] != k:
            raise ValueError(
                f"{layer}: expected statistics of {k} inputs for a weight {tuple(weight.shape)}, "
                f"found {stats.amax.shape[0]}"
            )
        self.weight = reference.widen(weight.detach())
        self.features = k // stats.places
        self._fmt = by_nearest(fmt)
        self._input_fmt = None if input_fmt is None else by_nearest(input_fmt.choosing)
        # rank 4, as a convolution's input has: any dimension that an input's block can name
        self._x = stats.sample.to(torch.float32).reshape(-1, 1, stats.places, self.features)
        self._y = self._product(self._x, self.weight)

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return x.reshape(-1, weight.shape[-1]) @ weight.T

    @torch.no_grad()
    def of(self, before: Before | None) -> float:
        """The error with this in front of the layer, None for nothing."""
        x = self._x if before is None else before(self._x)
        weight = self.weight if before is None else before.to_weight(self.weight)
        if not bool(weight.isfinite().all()):
            return float("inf")
        weight = fake_quantize(weight, self._fmt)
        if self._input_fmt is not None:
            x = fake_quantize(x, self._input_fmt)
        return float((self._product(x, weight) - self._y).square().sum(dtype=torch.float64))

    def best(self, candidates: Sequence[tuple[str, Before]]) -> tuple[Before | None, list[str]]:
        """The candidate of least error and what it is, or None and why not: never a worse one."""
        if not bool(self.weight.isfinite().all()):
            return None, ["not transformed: its weight holds a NaN or an infinity"]
        without = self.of(None)
        if without == 0:
            return None, ["not transformed: its output has no error"]
        errors = [self.of(before) for _, before in candidates]
        least = min(errors, default=without)
        ratio = least / without
        if not ratio < 1 - SAME:
            return None, [f"not transformed: the error of its output would be {ratio:.3g} times"]
        least_error, before = candidates[errors.index(least)]
        return before, [f"{least_error} (error of its output {ratio:.3g} times)"]


def by_nearest(fmt: Format) -> Format:
    """A format that rounds by chance, without."""
    return replace(fmt, rounding="nearest_even") if fmt.rounding == "stochastic" else fmt
