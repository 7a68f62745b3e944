# SPDX-License-Identifier: BSD-3-Clause
"""An operand's parts, and what it makes of them."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams

FORMATS = ("int8", "uint4:group8:fp32:asym", "nvfp4", "mxfp4", "int3:token:fp16")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 32), (2, 3, 33), (0, 8)], ids=str)
def test_a_quantized_tensor(fmt: str, shape: tuple[int, ...]) -> None:
    fmt = fmt if shape else "int8:tensor:fp32"
    q = bs.quantize(torch.randn(shape), fmt)
    operand = q.operand
    assert operand.shape == shape
    assert operand.format == q.format
    assert all(a is b for a, b in zip(operand.qparams, q.qparams, strict=True))
    assert (operand.codes, operand.size) == (q.packed, shape[-1] if shape else 1)


def test_a_quantizer_with_and_without_a_scale() -> None:
    assert quantizer(None, "int8") == Quantizer(None, None, None, "int8", None)
    assert quantizer(None, "int8").qparams is None
    scale, outer, zero = torch.ones(1), torch.ones(2), torch.zeros(1, dtype=torch.int32)
    made = quantizer(QParams(scale, outer, zero), parse("uint8"), torch.tensor(3))
    assert made.scale is scale and made.outer is outer and made.zero_point is zero
    assert made.fmt == str(parse("uint8")) and made.seed == 3
    assert made.format == parse("uint8")
    assert made.qparams is not None
    assert all(a is b for a, b in zip(made.qparams, (scale, outer, zero), strict=False))
    assert made.more is None and made.qparams[3:] == (None,) * len(made.qparams[3:])


def test_further_parts_are_a_list_in_the_order_of_the_format() -> None:
    fmt = "uint4:group4:(uint6:group2:fp16):offset(uint6:group2:fp16)"
    q = bs.quantize(torch.randn(2, 16), fmt)
    assert [part.dtype for part in q.operand.more or ()] == [torch.uint8, torch.float16]
    assert q.operand.qparams.offset is q.qparams.offset
    assert q.operand.qparams.offset_outer is q.qparams.offset_outer
    with pytest.raises(
        ValueError, match=r"expected 2 more tensors \(offset, offset_outer\), found 1$"
    ):
        _ = q.operand._replace(more=[torch.zeros(1)]).qparams


def test_no_format_is_no_format() -> None:
    assert UNQUANTIZED.fmt == "" and UNQUANTIZED.qparams is None
    with pytest.raises(ValueError):
        _ = UNQUANTIZED.format


def test_they_are_plain_tuples() -> None:
    """Made at every call: no dataclass, and torch's tree functions take them apart."""
    operand = Operand(torch.zeros(1), torch.ones(1), None, None, "int8", 1)
    assert isinstance(operand, tuple) and len(operand) == 7
    assert operand._replace(size=2).size == 2
