"""Embeddings and convolutions: the same values as the reference's, in the interpreter too."""

import pytest
import torch

from blockscale.core.layout import to_stored
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.registry import use
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.embedding import embedding

FORMATS = (
    *("int8:channel0:fp32", "int4:group32:fp32", "uint4:group16:fp16:asym", "e2m1:group16:e4m3"),
    *("e4m3:group32:e8m0/floor", "int8:tensor:fp32", "int8:channel1:fp32", "log4:token:fp32"),
    *("binary:channel0:fp32", "e3m2:group32:e8m0/tosa"),
)
NOTHING = (None, None, None)


@pytest.fixture(autouse=True)
def _here() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def stored(w: torch.Tensor, fmt: str) -> tuple:
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    scale, outer, zero_point = P.from_list(rest, parse(fmt))
    return codes, scale, zero_point, outer


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table(fmt: str, dtype: torch.dtype) -> None:
    weight = stored(torch.randn(9, 80, device=device()), fmt)
    for indices in (torch.tensor([[3, 3, 0], [8, 1, 7]]), torch.tensor(4), torch.tensor([]).long()):
        args = (Operand(*weight, fmt, 80), indices.to(device()), dtype)
        with use("cuda"):
            found = embedding(*args)
        assert torch.equal(found, embedding.reference(*args))


def test_tiles_are_the_references() -> None:
    weight = stored(torch.randn(9, 80, device=device()), "int8:tile4x16:fp32")
    table = Operand(*weight, "int8:tile4x16:fp32", 80)
    args = (table, torch.tensor([1], device=device()), torch.float32)
    with use("cuda"), pytest.raises(RuntimeError, match="no cuda kernel runs embedding"):
        embedding(*args)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("given", ["", "int8:token:fp32", "e4m3:group8:e8m0/floor"])
def test_convolutions(fmt: str, given: str) -> None:
    float_weight = torch.randn(6, 8, 3, 3, device=device())
    weight = stored(to_stored(float_weight, "channels_last"), fmt)
    x = torch.randn(2, 16, 7, 6, device=device())
    bias = torch.randn(6, device=device())
    args = (
        x, Operand(*weight, fmt, 72), bias, [6, 8, 3, 3], [2, 1], [1, 0], [1, 2], 2,
        Quantizer(*NOTHING, given),
    )  # fmt: skip
    with use("cuda"):
        found = conv(*args)
    values, dense = conv.reference(*args), x.abs().amax() * float_weight.abs().sum() / 6
    assert (found - values).abs().max() <= 64 * 2.0**-24 * dense
