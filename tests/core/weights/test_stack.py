# SPDX-License-Identifier: BSD-3-Clause
"""A stack's format gives each matrix the bits that it has by itself."""

import pytest
import torch

import blockscale as bs
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.weights.stack import of_matrix, of_stack

SPELLINGS = [
    "int8:tensor:fp32",
    "int8_channel",
    "int8:channel1:fp32",
    "int8:channel-1:fp16:asym",
    "int8:token:fp32",
    "int4:group32:fp32",
    "int4:group16:fp32:asym",
    "int4:group3@0:bf16",
    "uint4:tile3x16:fp32:asym",
    "int8:tile4x5:fp32",
    "int8:block*x16:fp32",
    "int8:block6x*:fp32",
    "mxfp4",
    "nvfp4",
    "nf4:group64:fp32",
    "nf4:flat64:fp32",
    "nf4:group64:(int8:group2:fp32)",
    "uint4:group16:(uint8:tensor:fp16):offset(uint8:tensor:fp16)",
    "int8:tensor:(e4m3:tensor:fp32)",
    "ternary",
    "binary",
    "e2m1:group16:e4m3/inv",
    "int8:tensor:fp32:offset(fp32)",
]


def stored(x: torch.Tensor, fmt: Format) -> list[torch.Tensor]:
    q = bs.quantize(x, fmt)
    return [q.packed, *(part for part in q.qparams if part is not None)]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_matrix_is_as_if_alone(spelling: str, parts: int) -> None:
    """Packed codes and every number beside them, matrix by matrix, from parts quantized alone."""
    torch.manual_seed(1)
    rows, columns = 12, 64
    x = torch.randn(3, rows, columns) * torch.tensor([1.0, 37.0, 1e-3]).reshape(3, 1, 1)
    x[:, : rows // 2] *= 5
    x[1, 2] = 0
    fmt = parse(spelling)
    if spelling == "int8:tile4x5:fp32" and parts == 2:
        with pytest.raises(ValueError, match="do not divide into blocks of 4 rows"):
            of_stack(fmt, x.shape, parts)
        return
    stack = of_stack(fmt, x.shape, parts)
    assert parse(str(stack)) == stack
    got = stored(x, stack)
    alone = [stored(half, fmt) for matrix in x for half in matrix.chunk(parts)]
    for mine, *others in zip(got, *alone, strict=True):
        assert torch.equal(mine.reshape(-1), torch.cat([each.reshape(-1) for each in others]))
    values = bs.quantize(x, stack).dequantize()
    one_by_one = [bs.quantize(half, fmt).dequantize() for m in x for half in m.chunk(parts)]
    assert torch.equal(values, torch.stack(one_by_one).reshape(x.shape))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_matrix_of_the_stack_has_its_usual_format(spelling: str) -> None:
    """By a name that means the same blocks of a matrix [12, 64]; `tensor` comes back as it was."""
    fmt = parse(spelling)
    back = of_matrix(of_stack(fmt, (3, 12, 64)), (3, 12, 64))
    assert back.stored((12, 64)) == fmt.stored((12, 64))
    if not any(odd in spelling for odd in ("token", "channel-1", "channel1", "@0", "block*")):
        assert back == fmt


def test_a_matrix_keeps_its_format_and_stacks_of_stacks_have_one() -> None:
    """Two dimensions and one part change nothing; more leading dimensions get numbers each."""
    fmt = parse("nvfp4")
    assert of_stack(fmt, (12, 64)) is fmt
    x = torch.randn(2, 3, 4, 32) * torch.arange(1.0, 7).reshape(2, 3, 1, 1)
    got = bs.quantize(x, of_stack(fmt, x.shape))
    assert got.qparams.outer is not None and got.qparams.outer.shape == (2, 3, 1, 1)
    for i in range(2):
        for j in range(3):
            assert torch.equal(got.packed[i, j], bs.quantize(x[i, j], fmt).packed)


@pytest.mark.parametrize(
    ("spelling", "shape", "parts", "says"),
    [
        ("book4:group32:fp32", (2, 4, 32), 1, "one table for a tensor"),
        ("int8:flat48:fp32", (2, 4, 32), 1, "reach from one of the stacked matrices"),
        ("int8:flat32@0:fp32", (2, 4, 32), 1, "use 'group32'"),
        ("int8:tensor:fp32", (2, 5, 32), 2, "5 rows do not divide into 2 parts"),
        ("int8:tensor:fp32", (32,), 1, "at least 2 dimensions"),
        ("int8:block2x2x2:fp32", (2, 4, 32), 1, "needs dimension -3"),
    ],
)
def test_what_no_stack_can_have(
    spelling: str, shape: tuple[int, ...], parts: int, says: str
) -> None:
    """An error that says why, not numbers shared between matrices."""
    with pytest.raises(ValueError, match=says):
        of_stack(parse(spelling), shape, parts)
