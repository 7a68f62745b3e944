# SPDX-License-Identifier: BSD-3-Clause
"""Error feedback: columns are rounded in an order, and those to come make up for their errors."""

import torch
from torch import Tensor

from blockscale.calibration.algorithms.columns import Columns

_TRIES = 16  # each with ten times the damping


def feed_back(columns: Columns, target: Tensor, factor: Tensor, order: Tensor, batch: int) -> None:
    """Round all columns in `order`; the scales of a block are chosen when its first one is reached.

    target: [k, n] float64, what the values should be
    factor: [k, k] float64, upper U with U^T U = H^-1, of the permuted H
    batch: columns that are rounded in one call, at most; then all later ones make up for them
    """
    pending = target[order]
    coupling = factor / factor.diagonal()[:, None]  # what an error costs each later column
    of_block = columns.block_of[order]
    blocks, k, place_of = of_block.tolist(), len(order), order.argsort()
    first = 0
    while first < k:
        if not columns.chosen[blocks[first]]:
            places = place_of[columns.columns_of(blocks[first])]
            columns.choose(blocks[first], pending[places].T.float().contiguous())
        last = first + 1
        while last < min(k, first + batch) and columns.chosen[blocks[last]]:
            last += 1
        some = slice(first, last)
        own = coupling[some, some].contiguous()
        found = columns.round(order[some], pending[some], None, own)
        pending[last:].addmm_(coupling[some, last:].T, found.errors, alpha=-1)
        first = last


def shifted(target: Tensor, h: Tensor, drift: Tensor, damping: float, layer: str) -> Tensor:
    """Weights [k, n] for inputs Xf -> those that give nearest to the same outputs for inputs Xq.

    h, drift: Xq^T Xq and Xq^T (Xf - Xq), both by rows [k, k] float64. The least squares solution
    of Xq T = Xf W is W + H^-1 drift W; H is damped here, too.
    """
    r, _ = backwards_factor(h, damping, layer)
    moved = torch.linalg.solve_triangular(r, drift @ target, upper=True)
    return target + torch.linalg.solve_triangular(r.T, moved, upper=False)


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
        backwards, failed = torch.linalg.cholesky_ex((h + damping * size * one).flip(0, 1))
        if not int(failed):
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
