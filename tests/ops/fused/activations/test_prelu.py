"""The activation PReLU."""

import torch
from torch import Tensor

from tests.ops.fused.cases import Case, check, every


def slopes(dtype: torch.dtype) -> dict[str, Tensor]:
    return {"weight": torch.linspace(-0.5, 0.5, 6, dtype=dtype)}


CASES = [
    Case(((4, 6, 10),), torch.prelu, slopes),
    Case(((4, 36),), torch.prelu, lambda dtype: {"weight": torch.tensor([0.3], dtype=dtype)}),
]


@every(CASES)
def test_prelu(case: Case, dtype: torch.dtype) -> None:
    check("prelu", case, dtype)
