# SPDX-License-Identifier: BSD-3-Clause
"""What weight algorithms know of a layer's inputs: their gram matrix X^T X / rows."""

import torch
from torch import Tensor


def checked(gram: Tensor, k: int, layer: str) -> Tensor:
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


def importance_of(gram: Tensor | None, k: int, layer: str) -> tuple[Tensor | None, list[str]]:
    """Gram [k, k] -> its diagonal [k], how much each input's errors count, and notes."""
    if gram is None:
        return None, ["nothing known of its inputs: all columns count the same"]
    diagonal = checked(gram, k, layer).diagonal()
    if not bool((diagonal > 0).any()):
        return None, ["all its inputs were 0: all columns count the same"]
    return torch.where(diagonal > 0, diagonal, diagonal[diagonal > 0].min()), []


def check_weighting(algorithm: str, weighting: str) -> None:
    """Raise ValueError unless errors count by "gram" or, "none", all the same."""
    if weighting not in ("none", "gram"):
        raise ValueError(f"{algorithm}: weighting must be 'none' or 'gram', got {weighting!r}")
