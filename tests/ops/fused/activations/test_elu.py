"""The activations ELU and SELU."""

import torch
import torch.nn.functional as F

from blockscale.core.operand import Value
from blockscale.ops.fused import FUSED
from tests.ops.fused.cases import Case, check, every

SELU = {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}

CASES = [
    Case(((4, 36),), lambda x: F.elu(x)),
    Case(((4, 36),), lambda x, *, alpha: F.elu(x, alpha), {"alpha": 0.7}),
    Case(((4, 36),), torch.ops.aten.elu, SELU, name="selu"),
]


@every(CASES)
def test_elu(case: Case, dtype: torch.dtype) -> None:
    check("elu", case, dtype)


def test_selu_is_one() -> None:
    x = torch.randn(4, 36)
    assert torch.equal(FUSED["elu"](Value(x), **SELU)[0], F.selu(x))
