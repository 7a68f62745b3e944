# SPDX-License-Identifier: BSD-3-Clause
"""Which codes a target dtype has, and how they are stored."""

import pytest
import torch

from blockscale.compat import torchao as ours
from blockscale.compat.torchao import MappingType, ZeroPointDomain
from blockscale.compat.torchao.dtypes import (
    BOUNDS,
    check_codes,
    check_holds,
    check_reaches,
    limits,
    stored_in,
)
from tests.compat.torchao.inputs import (
    SYMMETRIC,
    same,
    their,
    theirs,
)


def test_signed_codes_below_a_byte_are_stored_in_int8() -> None:
    x = torch.randn(4, 64)
    scale, zero = ours.choose_qparams_affine(x, SYMMETRIC, (1, 32), torch.int4)
    q = ours.quantize_affine(x, (1, 32), scale, zero, torch.int4)
    same(q, theirs.quantize_affine(x, (1, 32), scale, zero, torch.int8, -8, 7))
    back = theirs.dequantize_affine(q, (1, 32), scale, zero, torch.int8, -8, 7)
    same(ours.dequantize_affine(q, (1, 32), scale, zero, torch.int4), back)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_limits_are_all_that_the_dtype_has(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if dtype.is_floating_point:
        expected = (torch.finfo(dtype).min, torch.finfo(dtype).max)
    elif name.startswith("uint"):
        expected = (0, 2 ** int(name[4:]) - 1)
    else:
        expected = (-(2 ** (int(name[3:]) - 1)), 2 ** (int(name[3:]) - 1) - 1)
    assert limits(dtype, None, None) == expected
    low, high = expected
    assert limits(dtype, low, high) == expected
    for wrong in ((low, low), (high, low), (low - 1000, None), (None, high + 1000)):
        with pytest.raises(ValueError, match="choose quant_min < quant_max in that range"):
            limits(dtype, *wrong)


def test_where_codes_are_stored() -> None:
    assert {stored_in(getattr(torch, f"uint{bits}")) for bits in range(1, 9)} == {torch.uint8}
    assert {stored_in(getattr(torch, f"int{bits}")) for bits in range(1, 9)} == {torch.int8}
    for dtype in (torch.int16, torch.int32, torch.float8_e4m3fn):
        assert stored_in(dtype) is dtype


def test_codes_below_a_byte_come_in_any_integers() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int64):
        check_codes(torch.ones(2, dtype=dtype), torch.uint4)
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(
            TypeError, match=r"expected an integer dtype that holds codes of torch.uint4"
        ):
            check_codes(torch.ones(2, dtype=dtype), torch.uint4)
    check_codes(torch.ones(2, dtype=torch.int8), torch.int8)
    with pytest.raises(TypeError, match=r"input_dtype is torch.int8: pass the dtype of the codes"):
        check_codes(torch.ones(2, dtype=torch.uint8), torch.int8)


def test_zero_points_must_not_wrap() -> None:
    check_holds(torch.int8, -128, 127)
    check_holds(torch.bfloat16, -(2**40), 2**40)  # floats do not wrap
    for low, high in ((-129, 0), (0, 128)):
        with pytest.raises(ValueError, match=r"holds -128 \.\.\. 127, .*: use torch\.int32"):
            check_holds(torch.int8, low, high)


def test_codes_must_not_overflow_what_computes_them() -> None:
    check_reaches(torch.float16, -65504, 65504)
    check_reaches(torch.float32, -(2**31), 2**31 - 1)
    with pytest.raises(ValueError, match=r"overflow torch\.float16.*convert the input to float32"):
        check_reaches(torch.float16, 0, 65505)


# torchao's own enum members are accepted wherever ours are.


def test_torchaos_members_are_accepted() -> None:
    x = torch.randn(4, 64)
    for mapping in theirs.MappingType:
        mine = ours.choose_qparams_affine(x, mapping, (1, 64), torch.int8)
        same(mine, theirs.choose_qparams_affine(x, mapping, (1, 64), torch.int8))
    assert {m.name for m in theirs.MappingType} == {m.name for m in MappingType}
    assert {m.name for m in theirs.ZeroPointDomain} == {m.name for m in ZeroPointDomain}
    none = theirs.ZeroPointDomain.NONE
    args = (their(SYMMETRIC), (1, 64), torch.int8)
    assert ours.choose_qparams_affine(x, *args, zero_point_domain=none)[1] is None
