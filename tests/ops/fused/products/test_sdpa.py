"""Attention with masks of both kinds, causal, scaled, and with heads that share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.fused.cases import Case, check, every

HEADS = ((2, 3, 5, 20), (2, 3, 7, 20), (2, 3, 7, 12))
SQUARE = ((2, 2, 6, 20),) * 3


def plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, **more)


def added(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"mask": torch.linspace(-3, 0, 7, dtype=dtype).expand(5, 7)}


CASES = [
    Case(HEADS, plain),
    Case(HEADS, plain, {"mask": torch.arange(7).expand(5, 7) < 5, "scale": 0.5}, name="seen"),
    Case(HEADS, plain, added, name="added"),
    Case(SQUARE, plain, {"causal": True}, name="causal"),
    Case(((2, 4, 5, 20), (2, 2, 5, 20), (2, 2, 5, 20)), plain, {"enable_gqa": True}, name="shared"),
]


@every(CASES)
def test_sdpa(case: Case, dtype: torch.dtype) -> None:
    check("sdpa", case, dtype)
