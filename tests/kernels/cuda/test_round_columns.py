"""Columns rounded one after the other, of tensors that a GPU has: the reference's bits."""

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.kernels.registry import supporting
from blockscale.ops.round_columns import round_columns
from tests.kernels.cuda.equal import DEVICE
from tests.ops.test_round_columns import scales_for


def there(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.to(DEVICE)
    return [each.to(DEVICE) for each in part] if isinstance(part, list | tuple) else part


@pytest.mark.parametrize(
    "fmt",
    [
        "int4:group1:fp32", "e2m1:group1:(e4m3:group1:fp32)", "uint4:group1:fp32:asym",
        "int4:group1:fp32:offset",
    ],
)  # fmt: skip
def test_the_references_bits(fmt: str) -> None:
    wanted = (torch.randn(9, 37).double() * 2).to(DEVICE)
    coupling = (torch.randn(9, 9).double() * 0.3).to(DEVICE)
    by = scales_for(wanted.cpu(), fmt)
    by = Quantizer._make(there(part) for part in by)
    for base in (None, torch.randn(9, 37).double().to(DEVICE)):
        with bs.use("cuda"):
            found = round_columns(wanted, base, coupling, by)
        with bs.use("reference"):
            expected = round_columns(wanted, base, coupling, by)
        for a, b in zip(found, expected, strict=True):
            assert a.device == wanted.device and torch.equal(a, b)


def test_where_the_processor_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("round_columns", "cuda", ("int4:group1:fp32",), ())
    assert supporting(*arguments) is not None
    assert supporting("round_columns", "cuda", ("book3:group1:fp32",), ()) is None
    monkeypatch.setattr("blockscale.kernels.cuda.round_columns.unavailable", lambda name: "gone")
    assert supporting(*arguments) is None
