# SPDX-License-Identifier: BSD-3-Clause
"""The kernels give the reference's bits: every format, dtype, block, instruction set, threads."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.kernels.cpu.native import known
from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import DTYPES, ELEMENTS, sample, spelling
from tests.support.gpu_cuda_reference import SPELLINGS, hard_inputs
from tests.support.rational_cases import cases

MORE = (
    *("nf4:group64:fp32", "fp4:group64:fp16", "iq4_nl:group32:fp16", "log8f3:channel0:fp32"),
    *("book(-1,-0.5,0,0.5,1):token:fp32", f"{ELEMENTS[-2]}:group64:bf16", "nf4:group16:e4m3"),
    *("nf4:group32:e8m0/floor", "fp4:group32:pow2/even", "log4f2:tile16x32:fp32:recip"),
    *("uint4:group32:fp16:offset", "int4:group64:fp32:recip:offset", "nf4:group64:fp32:offset"),
    *("e2m1:group32:e8m0/ceil:offset", "uint8:group16@0:e4m3:offset(fp16)"),
    *(
        "int8:tensor:fp32:offset",
        "uint3:channel1:bf16:offset:stochastic",
        "uint12:tile5x48:fp32:offset(bf16)",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*SPELLINGS, *MORE])
def test_hard_inputs(fmt: str) -> None:
    """In one of the three dtypes: the other two are slow."""
    dtype = list(DTYPES.values())[[*SPELLINGS, *MORE].index(fmt) % 3]
    assert wrong(hard_inputs(dtype), fmt, threads=(1, 2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", [*SPELLINGS, *MORE])
def test_hard_inputs_of_every_dtype(fmt: str, dtype: str) -> None:
    assert wrong(hard_inputs(DTYPES[dtype]), fmt) == []


@pytest.mark.some(12)
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_formats_and_shapes(first: int) -> None:
    """Every element, with scales, blocks and options in turn."""
    for number in range(first, first + 20):
        fmt, x = sample(number)
        assert wrong(x, fmt, threads=(1 + number % 3,)) == [], (number, fmt, x.shape, x.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2500, 100))
def test_more_formats_and_shapes(first: int) -> None:
    for number in range(first, first + 100):
        fmt, x = sample(number)
        assert wrong(x, fmt, threads=(1 + number % 3,)) == [], (number, fmt, x.shape, x.dtype)


QUICK = settings(
    max_examples=70,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=4000)


def check(case: tuple[str, Tensor, int, int], threads: int) -> None:
    fmt, x, seed, first = case
    if known((parse(fmt),), ()):
        assert wrong(x, fmt, torch.tensor([seed, first]), threads=(threads,)) == []


@QUICK
@given(cases(), st.sampled_from([1, 2, 3]))
def test_the_whole_grammar(case: tuple[str, Tensor, int, int], threads: int) -> None:
    """Small tensors of every rank, strided and transposed, with awkward numbers."""
    check(case, threads)


@pytest.mark.slow
@LONG
@given(cases(), st.sampled_from([1, 2, 3]))
def test_the_whole_grammar_at_length(case: tuple[str, Tensor, int, int], threads: int) -> None:
    check(case, threads)


@pytest.mark.some(6)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 3), (0, 0)], ids=str)
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    blocks = ["tensor", "token", "group4", "channel0", "channel-1"]
    blocks += ["tile2x3", "group2@0"] if len(shape) > 1 else []
    for i, block in enumerate(blocks):
        for element in ("int8", "int4", "int12", "binary", "ternary", "e2m1", "nf4", "log8f3"):
            fmt = spelling(2 * i, element, block)
            assert wrong(torch.zeros(shape), fmt) == [], fmt


@pytest.mark.some(16)
@pytest.mark.parametrize("element", ELEMENTS)
def test_rank_0(element: str) -> None:
    for scale in ("fp32", "e8m0/floor", "e4m3", "(uint8:tensor:fp32)"):
        for value in (1.5, -0.0, torch.nan):
            assert wrong(torch.tensor(value), f"{element}:tensor:{scale}") == [], scale
