# SPDX-License-Identifier: BSD-3-Clause
"""What of x is multiplied: x itself, codes, or values that its input format leaves."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.operand import UNQUANTIZED, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.input import Codes, Values, kind, read
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE


def test_kinds() -> None:
    kinds = {"": "plain", "int8:token:fp32": "codes", "mxfp8": "powers", "int4": "float32",
             "int16:token:fp32": "float32", "nvfp4": "float32"}  # fmt: skip
    assert {fmt: kind(str(parse(fmt)) if fmt else "", 2) for fmt in kinds} == kinds


@pytest.mark.parametrize(
    "fmt", ["int8:token:fp32", "int8:tensor:fp32", "e4m3:token:fp32", "ternary:token:fp32"]
)
@pytest.mark.parametrize("given", [False, True])
def test_codes_are_what_the_reference_leaves(fmt: str, given: bool) -> None:
    """Codes times the factor of their row, and as bfloat16 they are the same."""
    x = torch.randn(2, 3, 64, device=DEVICE)
    by = Quantizer(None, None, None, fmt)
    if given:
        scale, outer, zero = P.from_list(P.choose_qparams.reference(x * 0.7, fmt), parse(fmt))[:3]
        by = Quantizer(scale, zero, outer, fmt)
    expected = P.fake_quantize.reference(x, by).reshape(6, 64)
    codes = read(x, by)
    assert isinstance(codes, Codes)
    values = codes.values()
    assert (values.x.dtype, values.x.shape, codes.row.shape) == (torch.bfloat16, (6, 64), (6,))
    assert torch.equal(values.x.float() * codes.row[:, None], expected)


def test_powers_of_two_are_bfloat16() -> None:
    x = torch.randn(3, 64, device=DEVICE)
    values = read(x, Quantizer(None, None, None, "int8:group32:e8m0/floor"))
    assert isinstance(values, Values)
    assert values.x.dtype is torch.bfloat16
    expected = P.fake_quantize.reference(x, Quantizer(None, None, None, "int8:group32:e8m0/floor"))
    assert torch.equal(values.x.float(), expected)


def test_what_has_no_format_is_as_it_is() -> None:
    x = torch.randn(2, 3, 64, device=DEVICE).half()
    values = read(x, UNQUANTIZED)
    assert isinstance(values, Values)
    assert torch.equal(values.x, x.reshape(6, 64))
    assert values.row is None
