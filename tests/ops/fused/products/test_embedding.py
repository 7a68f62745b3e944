"""Rows of a table in any format; only those that are asked for are dequantized."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from blockscale.core.operand import Value
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.products import embedding as module
from tests.ops.fused.cases import Case, check, coded, every

INDICES = torch.tensor([[3, 0, 7], [7, 7, 1]])
CASES = [
    Case(
        ((9, 36),),
        lambda weight, *, indices: F.embedding(indices, weight),
        {"indices": INDICES},
        rows=False,
    ),
    Case(
        ((9, 20),),
        lambda weight, *, indices: F.embedding(indices, weight),
        {"indices": torch.tensor(4)},
        rows=False,
    ),
]


@every(CASES)
def test_embedding(case: Case, dtype: torch.dtype) -> None:
    check("embedding", case, dtype)


def test_only_rows_are_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    rows_of = module.rows_of
    watched = SimpleNamespace(run=lambda *args: asked.append(args) or rows_of.run(*args))
    monkeypatch.setattr(module, "rows_of", watched)
    FUSED["embedding"](coded(torch.randn(9, 36), "mxfp8"), indices=INDICES)
    FUSED["embedding"](Value(torch.randn(9, 36)), indices=INDICES)
    assert len(asked) == 1
