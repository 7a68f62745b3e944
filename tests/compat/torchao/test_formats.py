# SPDX-License-Identifier: BSD-3-Clause
"""The format that has torchao's bits; the oracle is torchao itself."""

import pytest
import torch

from blockscale.compat import torchao as ours
from blockscale.core import reference as R
from blockscale.core.parse import parse
from tests.compat.torchao.inputs import (
    ASYMMETRIC,
    NO_CLIPPING,
    SHAPE,
    SYMMETRIC,
    awkward,
    same,
    theirs,
    ties,
)

SPELLINGS = [
    (SYMMETRIC, (1, 32), torch.int8, (), "int8:group32:fp32:half:recip"),
    (SYMMETRIC, (1, 64), torch.int8, (-127, 127), "int8:channel0:fp32:recip"),
    (SYMMETRIC, (4, 16), torch.int8, (-8, 7), "int4:tile4x16:fp32:half:recip"),
    (SYMMETRIC, (16, 64), torch.int16, (), "int16:tensor:fp32:half:recip"),
    (NO_CLIPPING, (1, 32), torch.int4, (), "int4:group32:fp32:full:recip"),
    (NO_CLIPPING, (16, 1), torch.int8, (), "int8:channel1:fp32:full:recip"),
    (NO_CLIPPING, (8, 1), torch.int8, (-7, 7), "int4:group8@0:fp32:recip"),
    (ASYMMETRIC, (1, 32), torch.uint4, (), "uint4:group32:fp32:asym:recip"),
    (ASYMMETRIC, (16, 32), torch.uint8, (), "uint8:tile16x32:fp32:asym:recip"),
    (ASYMMETRIC, (1, -1), torch.int8, (), "int8:channel0:fp32:asym:recip"),
    (ASYMMETRIC, (-1, -1), torch.int32, (0, 65535), "uint16:tensor:fp32:asym:recip"),
    (ASYMMETRIC, (1, 1), torch.uint1, (), "uint1:group1:fp32:asym:recip"),
]


@pytest.mark.parametrize(
    ("mapping", "block", "target", "limits", "spelling"), SPELLINGS, ids=[s[4] for s in SPELLINGS]
)
def test_format_has_torchaos_bits(mapping, block, target, limits, spelling: str) -> None:
    assert ours.to_format(mapping, block, target, *limits, shape=SHAPE) == spelling
    fmt, x = parse(spelling), awkward(torch.float32)
    whole = tuple(n if size == -1 else size for n, size in zip(SHAPE, block, strict=True))
    args = (target, *(limits or (None, None)), None, None, torch.int32, True)
    api = ours if whole == (1, 1) or target == torch.int4 else theirs  # where torchao stops
    scale, zero = api.choose_qparams_affine(x, theirs.MappingType[mapping.name], whole, *args)
    qparams = R.choose_qparams(x, fmt)
    same(qparams.scale, scale)
    if fmt.asym:
        same(qparams.zero_point, zero)
    for data in (x, ties(scale, whole, torch.float32)):
        q = api.quantize_affine(data, whole, scale, zero, target, *limits)
        codes = R.quantize(data, qparams, fmt)
        same(codes.to(q.dtype), q)
        back = api.dequantize_affine(q, whole, scale, zero, target, *limits)
        same(R.dequantize(codes, qparams, fmt, torch.float32), back)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((SYMMETRIC, (1, 32), torch.uint8), "SYMMETRIC with codes 0 ... 255"),
        ((SYMMETRIC, (1, 32), torch.float8_e4m3fn), "codes -448.0 ... 448.0"),
        ((SYMMETRIC, (1, 32), torch.int1), "codes -1 ... 0"),
        ((SYMMETRIC, (1, 32), torch.int32), "integers of 1 to 16 bits"),
        ((ASYMMETRIC, (1, 32), torch.int8, -127, 127), "ASYMMETRIC with codes -127"),
    ],
)
def test_no_format(args, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours.to_format(*args)


def test_blocks_of_any_rank_have_a_spelling() -> None:
    def block(sizes: tuple[int, ...], shape: tuple[int, ...] | None = None) -> str:
        return ours.to_format(SYMMETRIC, sizes, torch.int8, shape=shape).split(":")[1]

    assert block((1, -1, -1, -1)) == block((1, 3, 3, 3), (8, 3, 3, 3)) == "channel0"
    assert block((1, 1, -1)) == block((1, 1, 64), (2, 4, 64)) == "token"
    assert block((1, 1, 32)) == block((1, 1, 32), (2, 4, 64)) == "group32"
    assert block((1, -1, 1), (2, 4, 64)) == "group4@1"
    assert block((1, 16, -1), (2, 32, 64)) == "tile16x64"
    assert block((1, 64), (1, 64)) == block(()) == "tensor"
    assert block((2, 3, 32)) == block((2, 3, 32), (4, 6, 64)) == "block2x3x32"
    assert block((3, 3, 2, 1)) == block((3, 3, 2, 1), (9, 6, 4, 5)) == "block3x3x2x1"
    assert block((1, 2, -1, -1)) == block((1, 2, 3, 3), (8, 6, 3, 3)) == "block2x*x*"
    assert block((1, -1, 1)) == "block*x1"
    assert block((-1, 4, 1), (2, 8, 3)) == "block*x4x1"
