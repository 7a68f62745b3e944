"""Bags of rows: sums, means, maxima, weighted, with rows that do not count."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.fused.cases import Case, check, every

MODES = ("sum", "mean", "max")
BAGS = {"indices": torch.tensor([3, 0, 7, 7, 7, 1]), "offsets": torch.tensor([0, 2, 2])}


def plain(
    weight: Tensor, *, indices: Tensor, offsets: Tensor, mode: int = 0, **more: Any
) -> Tensor:
    weights = more.get("per_sample_weights")
    if weights is not None:
        more["per_sample_weights"] = weights.float()
    return F.embedding_bag(indices, weight, offsets, mode=MODES[mode], **more)


def weighted(dtype: torch.dtype) -> dict[str, Any]:
    return BAGS | {"per_sample_weights": torch.linspace(0.5, 2, 6, dtype=dtype)}


CASES = [
    *[Case(((9, 36),), plain, BAGS | {"mode": mode}, rows=False) for mode in range(3)],
    Case(((9, 36),), plain, weighted, rows=False),
    Case(
        ((9, 36),),
        plain,
        BAGS | {"include_last_offset": True, "padding_idx": 7, "offsets": torch.tensor([0, 2, 6])},
        rows=False,
    ),
]


@every(CASES)
def test_embedding_bag(case: Case, dtype: torch.dtype) -> None:
    check("embedding_bag", case, dtype)
