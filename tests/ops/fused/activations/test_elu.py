"""The activations ELU and SELU."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}

CASES = [
    Case(((4, 36),), lambda x: F.elu(x)),
    Case(((4, 36),), lambda x, *, alpha: F.elu(x, alpha), {"alpha": 0.7}),
    Case(((4, 36),), lambda x, **_: F.selu(x), SELU, name="selu"),
]


@every(CASES)
def test_elu(case: Case, dtype: torch.dtype) -> None:
    check("elu", case, dtype)
