"""blockscale.compat.torchao has torchao's signatures and bits; the oracle is torchao itself."""

import inspect
import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.compat import torchao as ours
from blockscale.compat.torchao import MappingType, ZeroPointDomain
from blockscale.core import reference as R
from blockscale.core.parse import parse

with warnings.catch_warnings():  # torchao deprecates itself while it is imported
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("torchao.quantization.quant_primitives")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
UINTS = tuple(getattr(torch, f"uint{bits}") for bits in range(1, 9))
INTS = tuple(getattr(torch, f"int{bits}") for bits in range(1, 8))
STORED = (*UINTS, torch.int8, torch.int16, torch.int32, *FLOAT8)  # torchao.quantize_affine knows
MAPPINGS = tuple(MappingType)
ASYMMETRIC = MappingType.ASYMMETRIC
SHAPE = (16, 64)
BLOCKS = [(16, 64), (1, 64), (16, 1), (1, 32), (4, 16), (16, 8), (1, -1)]
INT, FLOAT, NONE = ZeroPointDomain

every_block = pytest.mark.parametrize("block", BLOCKS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda m: m.name)


def awkward(dtype: torch.dtype) -> Tensor:
    """[16, 64]: rows where rounding, the floor of the scale or the range go to their limits."""
    info, k, normal = torch.finfo(dtype), torch.arange(-32.0, 32.0), torch.randn(16, 64)
    rows = [*normal]
    rows[0], rows[1], rows[2] = k * 0, k * -0.0, k * 0 + 1.7  # zeros, constant
    rows[3], rows[4], rows[5] = k * 0 - 3, normal[5].abs(), -normal[6].abs()  # one sign
    rows[6] = normal[6] * info.smallest_normal  # 1e-38 in float32: the floor, and subnormals
    rows[7] = (normal[7] / normal[7].abs().max()) * info.max * 0.49  # max - min is finite
    rows[8] = k / 2 + torch.where(k == 31, 112, 0)  # amax 127.5, scale 1: exact ties
    rows[9] = k / 2 + torch.where(k == 31, 224.0, torch.where(k == -32, 0, 0.5))  # range 255
    rows[10] = rows[8] * 0.1  # ties that the reciprocal misses
    rows[11] = normal[11] * info.tiny * info.eps  # subnormals
    rows[12] = torch.where(k == 0, info.max * 0.4, rows[6])  # huge beside tiny
    return torch.stack(rows).to(dtype)


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bits, so that -0 is not 0 and NaN is NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def same(mine: object, expected: object) -> None:
    pairs = zip(mine, expected, strict=True) if isinstance(mine, tuple) else [(mine, expected)]
    for a, b in pairs:
        assert bits_equal(a, b), (a.dtype, a.shape, b.dtype, b.shape, a[a != b], b[a != b])


def their(mapping: MappingType) -> object:
    return theirs.MappingType[mapping.name]


def overflows(target: torch.dtype, *dtypes: torch.dtype) -> bool:
    """Whether torchao stops because float16 cannot hold the limits of int32."""
    return target == torch.int32 and set(dtypes) == {torch.float16}


def ties(scale: Tensor, block: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """[16, 64]: multiples of half a step, with its float neighbours."""
    sizes = [n if size == -1 else size for n, size in zip(SHAPE, block, strict=True)]
    for dim, size in enumerate(sizes):
        scale = scale.repeat_interleave(size, dim)
    x = (scale.float() * torch.randint(-260, 260, SHAPE) / 2).to(dtype)
    up, down = (torch.full_like(x, end) for end in (math.inf, -math.inf))
    choice = torch.arange(x.numel()).reshape(SHAPE) % 3
    x = torch.where(choice == 1, x.nextafter(up), x)
    return torch.where(choice == 2, x.nextafter(down), x)


def check_both_ways(x: Tensor, block: tuple[int, ...], scale: Tensor, zero, target, **limits) -> None:
    q = theirs.quantize_affine(x, block, scale, zero, target, **limits)
    same(ours.quantize_affine(x, block, scale, zero, target, **limits), q)
    for out in FLOATS:
        args = (q, block, scale, zero, target)
        expected = theirs.dequantize_affine(*args, **limits, output_dtype=out)
        same(ours.dequantize_affine(*args, **limits, output_dtype=out), expected)


@pytest.mark.parametrize("name", [n for n in dir(ours) if n.endswith(("affine", "min_max"))])
def test_signatures_are_torchaos_with_keywords_after(name: str) -> None:
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    expected = list(inspect.signature(getattr(theirs, name)).parameters.values())
    head, added = mine[: len(expected)], mine[len(expected) :]
    assert [(p.name, p.kind, p.default) for p in head] == [
        (p.name, p.kind, p.default) for p in expected
    ]
    assert added
    assert all(p.kind is p.KEYWORD_ONLY for p in added)


@every_mapping
@every_block
@every_dtype
def test_choose(mapping: MappingType, block: tuple[int, ...], dtype: torch.dtype) -> None:
    x = awkward(dtype)
    for target, scale_dtype in itertools.product((*STORED, *INTS), (None, *FLOATS)):
        for zero_dtype in (torch.int32, None, torch.int16, torch.float32, torch.bfloat16):
            if (zero_dtype == torch.int16 and target in (torch.int32, *FLOAT8)) or (
                mapping is ASYMMETRIC and overflows(target, dtype)
            ):
                continue  # wraps around in torchao, an error here
            args = (block, target, None, None, None, scale_dtype, zero_dtype)
            expected = theirs.choose_qparams_affine(x, their(mapping), *args)
            same(ours.choose_qparams_affine(x, mapping, *args), expected)
    for eps, keepdim, limits in ((1e-5, False, (-8, 7)), (None, True, (-127, 127)), (0.5, True, (0, 9))):
        if keepdim and -1 in block:
            continue  # torchao divides by -1
        args = (block, torch.int8, *limits, eps, None, torch.int32, keepdim)
        expected = theirs.choose_qparams_affine(x, their(mapping), *args)
        same(ours.choose_qparams_affine(x, mapping, *args), expected)


@every_mapping
@every_block
@every_dtype
def test_quantize_and_dequantize(
    mapping: MappingType, block: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = awkward(dtype)
    for target, scale_dtype in itertools.product(STORED, FLOATS):
        if overflows(target, dtype, dtype if mapping is ASYMMETRIC else scale_dtype):
            continue
        args = (mapping, block, target, None, None, None, scale_dtype, torch.int32, True)
        scale, zero = ours.choose_qparams_affine(x, *args)
        for data in (x, ties(scale, block, dtype)):
            check_both_ways(data, block, scale, zero, target)
        check_both_ways(x, block, scale, zero.to(torch.bfloat16), target)
        check_both_ways(x, block, scale.flatten(0, 0), zero, target, quant_min=0, quant_max=1)


@every_block
@every_dtype
def test_float_domain_and_no_preserve_zero(block: tuple[int, ...], dtype: torch.dtype) -> None:
    x = awkward(dtype)
    mine, expected = ours.choose_qparams_affine, theirs.MappingType.ASYMMETRIC
    for target, scale_dtype, zero_dtype in itertools.product(
        (*STORED, *INTS), (None, *FLOATS), (None, torch.float32, torch.bfloat16)
    ):
        head, tail = (block, target), (None, None, None, scale_dtype, zero_dtype)
        if overflows(target, dtype):
            continue
        kept = theirs._choose_qparams_affine_dont_preserve_zero(x, expected, *head, *tail)
        same(mine(x, ASYMMETRIC, *head, *tail, preserve_zero=False), kept)
        scale, zero = theirs._choose_qparams_affine_tinygemm(x, expected, *head, *tail)
        domain = {"zero_point_domain": FLOAT}
        same(mine(x, ASYMMETRIC, *head, *tail, preserve_zero=False, **domain), (scale, zero))
        if target not in STORED:
            continue
        args = (block, scale, zero, target)
        q = theirs._quantize_affine_tinygemm(x, *args)
        same(ours.quantize_affine(x, *args, **domain), q)
        for out in FLOATS if target not in FLOAT8 else ():  # torchao cannot subtract from a float8
            back = theirs._dequantize_affine_tinygemm(q, *args, output_dtype=out)
            same(ours.dequantize_affine(q, *args, output_dtype=out, **domain), back)


@every_block
@every_dtype
def test_no_zero_point(block: tuple[int, ...], dtype: torch.dtype) -> None:
    x, none = awkward(dtype), {"zero_point_domain": NONE}
    for target, scale_dtype in itertools.product(STORED, FLOATS):
        if overflows(target, dtype, scale_dtype):
            continue
        args = (MappingType.SYMMETRIC, block, target, None, None, None, scale_dtype)
        scale, zero = ours.choose_qparams_affine(x, *args, **none)
        assert zero is None
        args = (block, scale, None, target)
        q = theirs._quantize_affine_no_zero_point(x, *args)
        same(ours.quantize_affine(x, *args, **none), q)
        same(ours.quantize_affine(x, *args), q)  # where torchao raises TypeError
        for out in FLOATS:
            back = theirs._dequantize_affine_no_zero_point(q, *args, output_dtype=out)
            same(ours.dequantize_affine(q, *args, output_dtype=out, **none), back)
            same(ours.dequantize_affine(q, *args, output_dtype=out), back)


@every_mapping
@every_dtype
def test_min_max(mapping: MappingType, dtype: torch.dtype) -> None:
    low, high = awkward(dtype).aminmax(dim=1)
    low, high = low.index_fill(0, torch.tensor(15), math.nan), high.clone()
    high[14] = math.inf
    for target, scale_dtype in itertools.product((*STORED, *INTS), (None, *FLOATS)):
        for zero_dtype in (None, torch.float32):
            if mapping is ASYMMETRIC and overflows(target, dtype):
                continue
            if zero_dtype is None and mapping is ASYMMETRIC:
                low[15] = 0  # NaN has no int32
            args = ((1, 64), target, None, None, None, scale_dtype, zero_dtype)
            expected = theirs.choose_qparams_affine_with_min_max(low, high, their(mapping), *args)
            same(ours.choose_qparams_affine_with_min_max(low, high, mapping, *args), expected)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...], torch.dtype, tuple[int, int]]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4))
    shape, block = [n * size for n, size in sizes], tuple(size for _, size in sizes)
    if set(block) == {1}:
        block = (*block[:-1], shape[-1])  # torchao reduces over everything there
    dtype, target = draw(st.sampled_from(FLOATS)), draw(st.sampled_from((torch.uint8, torch.int8)))
    exponent = draw(st.integers(-149, 127))
    count = math.prod(shape)
    numbers = draw(st.lists(st.integers(-300, 300), min_size=count, max_size=count))
    x = (torch.tensor(numbers, dtype=torch.float64) / 2 * 2.0**exponent).reshape(shape)
    info = torch.finfo(dtype)
    low = draw(st.integers(torch.iinfo(target).min, torch.iinfo(target).max - 1))
    high = draw(st.integers(low + 1, torch.iinfo(target).max))
    return x.clamp(info.min, info.max).to(dtype), block, target, (low, high)


@settings(max_examples=300)
@given(problems(), st.sampled_from(MAPPINGS), st.sampled_from(FLOATS))
def test_any_shape_block_and_limits(problem, mapping: MappingType, scale_dtype) -> None:
    x, block, target, limits = problem
    args = (block, target, *limits, None, scale_dtype)
    scale, zero = theirs.choose_qparams_affine(x, their(mapping), *args)
    same(ours.choose_qparams_affine(x, mapping, *args), (scale, zero))
    if (mapping is not ASYMMETRIC or scale.isfinite().all()) and scale.dtype == x.dtype:
        check_both_ways(x, block, scale, zero, target, quant_min=limits[0], quant_max=limits[1])
