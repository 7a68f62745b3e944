"""Float32 stays float32 inside, whatever autocast and torch's switches say."""

import contextlib

import pytest
import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside


def product(x: Tensor) -> Tensor:
    with float32_inside(x):
        return x @ x


def test_autocast_does_not_reach_inside() -> None:
    x = torch.randn(16, 16)
    expected = x @ x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = product(x)
        assert torch.is_autocast_enabled("cpu")
        outside = x @ x
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert outside.dtype == torch.bfloat16  # or the test would say nothing


def test_it_is_left_as_it_was_after_an_error() -> None:
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="inside"), float32_inside(x):
            raise RuntimeError("inside")
        assert torch.is_autocast_enabled("cpu")


def test_nothing_is_entered_where_nothing_is_to_be_kept_out() -> None:
    for x in (torch.ones(2), torch.ones(2, device="meta")):
        assert isinstance(float32_inside(x), contextlib.nullcontext)


@pytest.mark.gpu
def test_no_tf32_inside() -> None:
    x = torch.randn(64, 64, device="cuda")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = product(x)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert torch.equal(found, x @ x)
