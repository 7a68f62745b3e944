# SPDX-License-Identifier: BSD-3-Clause
"""The Triton kernels give the reference's bits: on a GPU, or else in Triton's interpreter.

What only compiled code does (division by reciprocal and repair, the GPU's own conversion to fp8)
is in tests/gpu/test_primitives.py. Tests of one part alone lie beside that, under device/ and
primitives/.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from tests.support.cuda_boxes import boxes
from tests.support.cuda_equal import DTYPES, has_kernels, wrong
from tests.support.cuda_formats import CODE_SCALES, CODEBOOKS, FLOAT_ZEROS, OFFSETS
from tests.support.gpu_cuda_reference import SPELLINGS, hard_inputs
from tests.support.rational_cases import cases
from tests.support.some import crossed

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


FEW = [
    "mxfp4", "mxfp6", "mxfp8", "mxfp8_e5m2", "mxint8", "nvfp4", "binary", "int8:group32:fp32",
    "ternary:group32:e8m0/floor", "int4:tile4x16:bf16:half", "int8:token:pow2/nearest:half",
    "int5:group16:e8m0/nearest:half", "e2m3:group8@0:fp32:recip", "log4",
    "int8_pow2", "uint4:token:fp16:asym", "int2:channel1:fp32:full", "int6:group7:e8m0/tosa",
    "int8:token:fp32:stochastic", "e2m1:group32@0:(uint4:channel0:fp32):nearest_away",
    "int8:group16:fp32:up", "e3m2:group16:fp32:down", "int12:group16:e4m3:toward_zero",
    *CODEBOOKS, *OFFSETS, *FLOAT_ZEROS, *CODE_SCALES,
]  # fmt: skip


QUICK = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


LONG = settings(QUICK, max_examples=400)


def few_rows(dtype: torch.dtype) -> Tensor:
    """Some of the hard inputs: one kind of number a row."""
    return hard_inputs(dtype)[[0, 9, 17, 24, 26, 28, 30, 31], :72].contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("fmt", crossed(3, FEW))
def test_hard_inputs(fmt: str) -> None:
    """In one of the three dtypes, decoded to the next."""
    i = FEW.index(fmt)
    x = few_rows(DTYPES[i % 3])
    x[6, 5], x[7, 71] = torch.nan, -torch.inf
    assert wrong(x, fmt, decodes=DTYPES[(i + 1) % 3]) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", SPELLINGS)
def test_every_format(fmt: str, dtype: torch.dtype) -> None:
    assert wrong(few_rows(dtype), fmt) == []


@QUICK
@given(cases())
def test_the_whole_grammar(case: tuple[str, Tensor, int, int]) -> None:
    """Small tensors of every rank, strided and transposed, with awkward numbers."""
    fmt, x, seed, first = case
    if has_kernels(fmt):
        assert wrong(x, fmt, torch.tensor([seed, first])) == []


@pytest.mark.slow
@LONG
@given(cases())
def test_the_whole_grammar_at_length(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    if has_kernels(fmt):
        assert wrong(x, fmt, torch.tensor([seed, first])) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    crossed(2, [
        ("int4:block3x3x2x1:fp32", (4, 5, 3, 4)), ("e2m1:block1x2x3x3:e8m0/floor", (3, 4, 3, 3)),
        ("uint4:block2x2x8:fp16:asym", (3, 5, 24)), ("ternary:block2x3x8:fp32", (4, 7, 24)),
        ("binary:block2x2x2:e4m3", (4, 6, 10)), ("int8:block2x*x4:fp32:stochastic", (3, 4, 10)),
        ("int6:block*x1x*:bf16", (3, 4, 5)), ("e4m3:block2x2x2x2:e8m0/even", (2, 3, 4, 3, 5)),
        ("int4:block2x3x4:(uint4:channel0:fp32)", (4, 5, 12)), ("int12:block*x4:fp32", (5, 10)),
    ]),
    ids=str,
)  # fmt: skip
def test_boxes(case: tuple[str, tuple[int, ...]]) -> None:
    """Blocks along several dimensions, in each dtype; then with numbers that are not finite."""
    fmt, shape = case
    torch.manual_seed(0)
    for dtype in DTYPES:
        x = torch.randn(shape).to(dtype)
        assert wrong(x, fmt) == [], dtype
        x.view(-1)[1], x.view(-1)[-1] = torch.nan, -torch.inf
        assert wrong(x, fmt) == [], dtype


@pytest.mark.slow
def test_boxes_too_large_for_a_program() -> None:
    """Their scales are chosen in several passes over memory, or by the reference from means."""
    x = torch.randn(33, 40, 48)
    for fmt in (
        "int8:block32x32x40:fp32",
        "uint4:block33x*x32:e4m3:asym",
        "binary:block*x32x48:fp32",
    ):
        assert wrong(x, fmt) == [], fmt


@pytest.mark.slow
@QUICK
@given(boxes())
def test_the_whole_grammar_in_boxes(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    assert wrong(x, fmt, torch.tensor([seed, first])) == []


@pytest.mark.slow
@LONG
@given(boxes())
def test_the_whole_grammar_in_boxes_at_length(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    assert wrong(x, fmt, torch.tensor([seed, first])) == []
