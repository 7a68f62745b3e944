# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings: the same values as the reference's, in the interpreter too."""

import pytest
import torch

from blockscale.core.operand import Operand
from blockscale.kernels.registry import use
from blockscale.ops.embedding import embedding
from tests.support.cuda_equal import DEVICE
from tests.support.cuda_matmul_exact import stored

FORMATS = (
    *("int8:channel0:fp32", "int4:group32:fp32", "uint4:group16:fp16:asym", "e2m1:group16:e4m3"),
    *("e4m3:group32:e8m0/floor", "int8:tensor:fp32", "int8:channel1:fp32", "log4:token:fp32"),
    "uint4:group16:fp16:asym(fp16)",
    *("binary:channel0:fp32", "e3m2:group32:e8m0/tosa", "int4:block*x32:fp32"),
)


@pytest.fixture(autouse=True)
def _here() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table(fmt: str, dtype: torch.dtype) -> None:
    weight = stored(torch.randn(9, 80, device=DEVICE), fmt)
    for indices in (torch.tensor([[3, 3, 0], [8, 1, 7]]), torch.tensor(4), torch.tensor([]).long()):
        args = (Operand(*weight, fmt, 80), indices.to(DEVICE), dtype)
        with use("cuda"):
            found = embedding(*args)
        assert torch.equal(found, embedding.reference(*args))


def test_tiles_are_the_references() -> None:
    weight = stored(torch.randn(9, 80, device=DEVICE), "int8:tile4x16:fp32")
    table = Operand(*weight, "int8:tile4x16:fp32", 80)
    args = (table, torch.tensor([1], device=DEVICE), torch.float32)
    with use("cuda"), pytest.raises(RuntimeError, match="no cuda kernel runs embedding"):
        embedding(*args)
