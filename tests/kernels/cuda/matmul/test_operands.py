# SPDX-License-Identifier: BSD-3-Clause
"""What of x is multiplied: x itself, codes, or values that its input format leaves."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.operand import UNQUANTIZED, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.operands import (
    Codes,
    ProductCall,
    Values,
    Weight,
    as_words,
    columns,
    kind,
    output_factors,
    read,
    scale_stride,
    tile_rows,
    worth_measuring,
)
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE
from tests.support.cuda_matmul_exact import stored


def test_kinds() -> None:
    kinds = {"": "plain", "int8:token:fp32": "codes", "mxfp8": "powers", "int4": "float32",
             "int16:token:fp32": "float32", "nvfp4": "float32"}  # fmt: skip
    assert {fmt: kind(str(parse(fmt)) if fmt else "", 2) for fmt in kinds} == kinds


@pytest.mark.some(2)
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


def test_words() -> None:
    """The same memory, little end first; None where rows or their beginnings are no words."""
    codes = torch.arange(40, dtype=torch.uint8).reshape(5, 8)
    words = as_words(codes)
    assert words is not None
    assert words.tolist()[0] == [0x03020100, 0x07060504]
    assert words.data_ptr() == codes.data_ptr()
    wide = torch.zeros(5, 12, dtype=torch.uint8)
    assert as_words(wide[:, 4:]) is not None
    assert as_words(wide[:, 2:10]) is None  # begins between words
    assert as_words(wide[:, :10]) is None  # ends between words
    assert as_words(torch.zeros(5, 10, dtype=torch.uint8)[:, :8]) is None  # rows that are none
    assert as_words(codes.t().contiguous().t()) is None


@pytest.mark.parametrize(
    ("name", "values", "stride"),
    [
        ("int8:channel0:fp32", "steps", 1), ("int8:tensor:fp32", "steps", 0),
        ("int8:tile2x64:fp32", "steps", 1), ("mxfp4", "none", 0), ("int4:group32:fp32", "none", 0),
        ("nvfp4", "outer", 0), ("nvfp4_token", "outer", 1), ("e4m3:token:e8m0/floor", "steps", 1),
    ],
)  # fmt: skip
def test_factors_of_outputs(name: str, values: str, stride: int) -> None:
    """What of the scales is not in the codes or the sums of blocks, for each output."""
    fmt, k = str(parse(name)), 64
    w = torch.randn(6, k, device=DEVICE)
    weight, r = Weight(*stored(w, fmt)), reading(fmt, k)
    factors = output_factors(weight, fmt, r)
    assert factors.stride == stride
    if values == "none":
        assert factors.values is None
    elif values == "outer":
        assert torch.equal(factors.values, weight.outer.reshape(-1))
    else:
        steps = weight.scale.float() if "e8m0" not in fmt else 2.0 ** (weight.scale.float() - 127)
        if "e8m0" in fmt:
            steps = steps / 2.0 ** parse(fmt).fraction_bits
        expected = steps.repeat_interleave(6 // steps.shape[0], 0).reshape(-1)
        assert torch.equal(factors.values.expand(6), expected)


def test_one_row_of_scales_has_no_stride() -> None:
    codes = torch.zeros(4, 8, dtype=torch.uint8)
    for rows, stride in ((1, 0), (4, 3)):
        assert scale_stride(Weight(codes, torch.ones(rows, 3), None, None)) == stride


def test_seven_numbers() -> None:
    assert columns([8, 64, 32, 4, 5]) == (8, 64, 32, 4, 5, 1, 1)
    assert columns([8, 64, 32, 4, 5, 2]) == (8, 64, 32, 4, 5, 2, 1)
    assert columns([8, 64, 32, 4, 5, 2, 3]) == (8, 64, 32, 4, 5, 2, 3)
    for wrong in ([], [1, 2, 3, 4], [1] * 8):
        with pytest.raises(ValueError, match="5 to 7 were expected: delete the table"):
            columns(wrong)
    for wrong in ([7, 64, 32, 4, 5], [8, 64, 32, 4, -1], [8, 64, 32, 4, True], [8, 64, "a", 4, 5]):
        with pytest.raises(ValueError, match=r"with the number .* was expected: delete the table"):
            columns(wrong)


def test_rows_of_a_tile_are_powers_of_two() -> None:
    found = [tile_rows(rows, 16) for rows in (1, 15, 16, 17, 32, 33, 1000)]
    assert found == [16, 16, 16, 32, 32, 64, 1024]
    assert tile_rows(1, 8) == 8


def test_tiles_near_the_calls_rows() -> None:
    def worth(tile: int, rows: int) -> bool:
        return worth_measuring(tile, ProductCall("weight", "", rows, 64, 64))

    assert [rows for rows in (1, 8, 9, 64) if worth(8, rows)] == [1, 8]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 40)] == [32, 64]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 128)] == [64, 128]
    assert [tile for tile in (16, 32, 64, 128, 256) if worth(tile, 1000)] == [128, 256]
