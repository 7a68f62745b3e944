# SPDX-License-Identifier: BSD-3-Clause
"""The format that has torchao's bits; the oracle is torchao itself."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.compat import torchao as ours
from blockscale.compat.torchao import kernels
from blockscale.core import reference as R
from blockscale.core.parse import parse
from tests.compat.torchao.inputs import (
    ASYMMETRIC,
    FLOATS,
    MAPPINGS,
    NO_CLIPPING,
    SHAPE,
    SYMMETRIC,
    awkward,
    same,
    their,
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


Calls = dict[str, list[bool]]  # name -> whether each call was answered by a kernel
BLOCKS = [
    ((6, 256), (1, 128)),
    ((6, 64), (1, 32)),
    ((64, 64), (32, 32)),
    ((4, 6, 8, 2), (2, 3, 4, 1)),
]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    calls: Calls = {}

    def watched(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> object:
            found = call(*args)
            calls.setdefault(name, []).append(found is not None)
            return found

        return run

    for name in ("choose", "quantized", "dequantized"):
        monkeypatch.setattr(kernels, name, watched(name, getattr(kernels, name)))
    yield calls


def all_three(api, mapping, x: Tensor, block, target, **limits) -> tuple[Tensor, ...]:
    args = (block, target, limits.get("quant_min"), limits.get("quant_max"))
    scale, zero = api.choose_qparams_affine(x, mapping, *args, zero_point_dtype=torch.int32)
    q = api.quantize_affine(x, block, scale, zero, target, **limits)
    back = [
        api.dequantize_affine(q, block, scale, zero, target, **limits, output_dtype=dtype)
        for dtype in FLOATS
    ]
    return scale, zero, q, *back


@pytest.mark.some(3)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda m: m.name)
@pytest.mark.parametrize(("shape", "block"), BLOCKS, ids=str)
def test_kernels_answer_with_torchaos_bits(mapping, shape, block, answered: Calls) -> None:
    targets = [(torch.int8, {}), (torch.int8, {"quant_min": -8, "quant_max": 7})]
    targets += [(torch.uint8, {}), (torch.uint4, {})] if mapping is ASYMMETRIC else []
    for target, limits in targets:
        x = torch.randn(shape) * 3 + 0.5
        mine = all_three(ours, mapping, x, block, target, **limits)
        same(mine, all_three(theirs, their(mapping), x, block, target, **limits))
    assert {name: all(found) for name, found in answered.items()} == {
        "choose": True, "quantized": True, "dequantized": True,
    }  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=5),
    st.sampled_from(MAPPINGS),
    st.randoms(use_true_random=False),
)
def test_any_rank(dims: list[tuple[int, int]], mapping, random) -> None:
    shape, block = [n * size for n, size in dims], tuple(size for _, size in dims)
    if max(block) == 1:
        return  # torchao takes blocks of single elements for one
    x = torch.randn(shape, generator=torch.Generator().manual_seed(random.randrange(2**31)))
    mine = all_three(ours, mapping, x, block, torch.int8)
    same(mine, all_three(theirs, their(mapping), x, block, torch.int8))


def quantize(api, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    return api.quantize_affine(x, (1, 32), scale, zero, torch.int8)


@pytest.mark.parametrize(
    ("scale", "zero"),
    [
        (torch.full((4, 2), 1e-39), torch.zeros(4, 2, dtype=torch.int32)),  # 1 / scale overflows
        (torch.full((4, 2), 0.0), torch.zeros(4, 2, dtype=torch.int32)),
        (torch.full((4, 2), -0.5), torch.zeros(4, 2, dtype=torch.int32)),
        (torch.full((4, 2), math.inf), torch.zeros(4, 2, dtype=torch.int32)),
        (torch.full((4, 2), 0.1, dtype=torch.bfloat16), torch.zeros(4, 2, dtype=torch.int32)),
        (torch.full((4, 2), 0.1), torch.full((4, 2), 1000)),  # beyond the codes
        (torch.full((4, 2), 0.1), torch.full((4, 2), 0.5)),
    ],
    ids=["tiny", "zero", "negative", "infinite", "bfloat16", "far", "fraction"],
)
def test_stands_back(scale: Tensor, zero: Tensor, answered: Calls) -> None:
    x = torch.randn(4, 64) + 2.5  # no zeros: 0 / 0 has no code
    same(quantize(ours, x, scale, zero), quantize(theirs, x, scale, zero))
    assert answered == {"quantized": [False]}


def test_stands_back_from_what_is_not_finite(answered: Calls) -> None:
    for odd in (math.nan, math.inf, -math.inf):
        x = torch.randn(4, 64)
        x[1, 3] = odd
        args = ((1, 32), torch.int8)
        found = ours.choose_qparams_affine(x, SYMMETRIC, *args)
        same(found, theirs.choose_qparams_affine(x, their(SYMMETRIC), *args))
    wide = torch.tensor([[-3e38, 3e38]])  # the range overflows, the sum does not
    found = ours.choose_qparams_affine(wide, ASYMMETRIC, (1, 2), torch.int8)
    same(found, theirs.choose_qparams_affine(wide, their(ASYMMETRIC), (1, 2), torch.int8))
    assert answered == {"choose": [False] * 4}


@pytest.mark.parametrize("eps", [1e-5, 0.5, 2.0**-130])
def test_the_floor_of_scales(eps: float) -> None:
    x = torch.randn(4, 64) * torch.tensor([[1e-7], [1e-3], [1.0], [100.0]])
    for mapping in MAPPINGS:
        args = ((1, 32), torch.int8, None, None, eps)
        found = ours.choose_qparams_affine(x, mapping, *args)
        same(found, theirs.choose_qparams_affine(x, their(mapping), *args))


def test_a_gradient_of_the_scale_is_kept(answered: Calls) -> None:
    codes = torch.randint(-128, 128, (4, 64), dtype=torch.int8)
    scale = torch.rand(4, 2, requires_grad=True)
    values = ours.dequantize_affine(codes, (1, 32), scale, None, torch.int8)
    values.sum().backward()
    assert scale.grad is not None
    assert torch.equal(scale.grad, codes.float().reshape(4, 2, 32).sum(-1))
    assert answered == {"dequantized": [False]}


def test_vmap(answered: Calls) -> None:
    x, scale = torch.randn(3, 4, 64), torch.rand(3, 4, 2) + 0.1
    many = torch.vmap(lambda x, s: quantize(ours, x, s, None))(x, scale)
    assert torch.equal(
        many, torch.stack([quantize(ours, *each, None) for each in zip(x, scale, strict=True)])
    )
    assert answered == {"quantized": [False, True, True, True]}
