"""Sums, means or maxima of rows of a table."""

from typing import Any

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused
from blockscale.ops.fused.values import widened

_WORDS = "weight indices offsets * mode * per_sample_weights include_last_offset"


def _shape(
    weight: Tensor, *, offsets: Tensor, include_last_offset: bool, **_: object
) -> tuple[Any, ...]:
    return (offsets.shape[0] - int(include_last_offset), weight.shape[1])


@fused(
    ulps=64,
    aten=(
        f"embedding_bag.default[0] {_WORDS}",
        f"embedding_bag.padding_idx[0] {_WORDS} padding_idx",
    ),
    wide=True,
    shape=_shape,
)
def embedding_bag(
    weight: Tensor,
    *,
    indices: Tensor,
    offsets: Tensor,
    mode: int = 0,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """A table [rows, n], indices [count], where each bag starts [bags] -> [bags, n].

    mode: 0 sum, 1 mean, 2 maximum
    """
    weights = per_sample_weights
    weights = None if weights is None else widened(weights, torch.float32)
    last = include_last_offset, padding_idx
    bags: Tensor = torch.embedding_bag(
        weight, indices, offsets, False, mode, False, weights, *last
    )[0]
    return bags
