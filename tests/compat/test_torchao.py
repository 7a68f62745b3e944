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
MAPPINGS = SYMMETRIC, NO_CLIPPING, ASYMMETRIC = tuple(MappingType)
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
        assert bits_equal(a, b), (a, b)


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


def check_both_ways(
    x: Tensor, block: tuple[int, ...], scale: Tensor, zero, target, **limits
) -> None:
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
    for eps, keepdim, limits in (
        (1e-5, False, (-8, 7)),
        (None, True, (-127, 127)),
        (0.5, True, (0, 9)),
    ):
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
        check_both_ways(x, block, scale.squeeze(), zero, target, quant_min=0, quant_max=1)


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
        # middle code 2047.5: the order of the casts matters
        args = (block, scale, zero, target, *((0, 4094) if target == torch.int16 else ()))
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
        args = (SYMMETRIC, block, target, None, None, None, scale_dtype)
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
    sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3))
    shape, block = [n * size for n, size in sizes], tuple(size for _, size in sizes)
    if set(block) == {1}:
        block = tuple(shape)  # torchao reduces over everything there
    dtype, target = draw(st.sampled_from(FLOATS)), draw(st.sampled_from((torch.uint8, torch.int8)))
    torch.manual_seed(draw(st.integers(0, 2**32)))
    halves = torch.randint(-300, 300, shape, dtype=torch.float64) / 2
    if draw(st.booleans()):
        halves = halves.mT.contiguous().mT if len(shape) > 1 else halves.flip(0)
    x = halves * 2.0 ** draw(st.integers(-149, 127))
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
    check_both_ways(x, block, scale, zero, target, quant_min=limits[0], quant_max=limits[1])


def round_trip(x: Tensor) -> Tensor:
    scale, zero = ours.choose_qparams_affine(x, ASYMMETRIC, (1, 32), torch.uint4)
    q = ours.quantize_affine(x, (1, 32), scale, zero, torch.uint4)
    y = ours.dequantize_affine(q, (1, 32), scale, zero, torch.uint4)
    domain = {"zero_point_domain": FLOAT}
    scale, middle = ours.choose_qparams_affine(
        x, ASYMMETRIC, x.shape, torch.int8, preserve_zero=False, **domain
    )
    q = ours.quantize_affine(x, x.shape, scale, middle, torch.int8, **domain)
    return y + ours.dequantize_affine(q, x.shape, scale, middle, torch.int8, **domain)


class RoundTrip(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return round_trip(x)


def test_compile_and_export() -> None:
    x, longer = torch.randn(4, 64), torch.randn(9, 64)
    compiled = torch.compile(round_trip, fullgraph=True, backend="aot_eager")
    same(compiled(x), round_trip(x))
    rows = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(RoundTrip(), (x,), dynamic_shapes=rows)
    same(program.module()(longer), round_trip(longer))
    assert not [n for n in program.graph.nodes if n.op == "get_attr"]  # one flat graph


def test_gradients_pass_where_torchaos_do() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    scale, zero = ours.choose_qparams_affine(x, ASYMMETRIC, (1, 32), torch.int8)
    q = ours.quantize_affine(x, (1, 32), scale, zero, torch.float8_e4m3fn)
    assert not scale.requires_grad
    assert not q.requires_grad
    scale.requires_grad_()
    assert not ours.quantize_affine(x, (1, 32), scale, zero, torch.float8_e4m3fn).requires_grad
    ours.dequantize_affine(q, (1, 32), scale, zero, torch.float8_e4m3fn).sum().backward()
    assert scale.grad is not None
    low, high = x.aminmax(dim=1)
    args = (SYMMETRIC, (1, 64), torch.int8)
    assert ours.choose_qparams_affine_with_min_max(low, high, *args)[0].requires_grad


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


# --- where torchao stops or is wrong (docs/torchao.md) ---


def test_signed_codes_below_a_byte_are_stored_in_int8() -> None:
    x = torch.randn(4, 64)
    scale, zero = ours.choose_qparams_affine(x, SYMMETRIC, (1, 32), torch.int4)
    q = ours.quantize_affine(x, (1, 32), scale, zero, torch.int4)
    same(q, theirs.quantize_affine(x, (1, 32), scale, zero, torch.int8, -8, 7))
    back = theirs.dequantize_affine(q, (1, 32), scale, zero, torch.int8, -8, 7)
    same(ours.dequantize_affine(q, (1, 32), scale, zero, torch.int4), back)


def test_a_zero_point_that_is_none_or_empty_is_zero() -> None:
    x, scale = torch.randn(4, 64), torch.rand(4) + 0.1
    zero, empty = torch.zeros(4), torch.zeros(0)
    for domain in (INT, FLOAT):
        args, key = ((1, 64), scale), {"zero_point_domain": domain}
        q = ours.quantize_affine(x, *args, zero, torch.uint4, **key)
        y = ours.dequantize_affine(q, *args, zero, torch.uint4, **key)
        for none in (None, empty):
            same(ours.quantize_affine(x, *args, none, torch.uint4, **key), q)
            same(ours.dequantize_affine(q, *args, none, torch.uint4, **key), y)


def test_blocks_of_one_element_have_a_scale_each() -> None:
    x = torch.randn(4, 6)
    for keepdim in (False, True):
        args = (ASYMMETRIC, (1, 1), torch.uint8, None, None, None, None, torch.int32, keepdim)
        scale, zero = ours.choose_qparams_affine(x, *args)
        same(scale, x.abs() / 255)
        assert zero.shape == x.shape
    scale, _ = ours.choose_qparams_affine(x[:1, :1], SYMMETRIC, (1, 1), torch.int8)
    assert scale.shape == ()  # as torchao: one element is one tensor


def choose(
    x: Tensor, block: tuple[int, ...] = (1, 32), target=torch.int8, mapping=ASYMMETRIC, **key
):
    return ours.choose_qparams_affine(x, mapping, block, target, **key)


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, target=torch.int8, **key):
    return ours.quantize_affine(x, (1, 32), scale, zero, target, **key)


X, S = torch.ones(4, 64), torch.ones(4, 2)
ERRORS = [
    (lambda: choose(X.double()), TypeError, "float64, expected float32.*input.float()"),
    (lambda: choose(X, (32,)), ValueError, r"1 entries, but the input has shape \(4, 64\)"),
    (lambda: choose(X, (1, 24)), ValueError, "24 does not divide dimension 1.*pad it to 72"),
    (lambda: choose(X, (1, 128)), ValueError, "pad it to 128"),
    (lambda: choose(X, (0, 64)), ValueError, "0 for dimension 0: use a positive size, or -1"),
    (lambda: choose(X, target=torch.uint16), ValueError, "uint16 has no codes: use"),
    (lambda: choose(X, quant_max=128), ValueError, "quant_max 128 are not limits within"),
    (lambda: choose(X, quant_min=5, quant_max=5), ValueError, "quant_min < quant_max"),
    (lambda: choose(X, mapping="SYMMETRIC"), TypeError, "MappingType .*NO_CLIPPING_ERR, ASYMM"),
    (lambda: choose(X, scale_dtype=torch.float64), ValueError, "scale_dtype is torch.float64"),
    (
        lambda: choose(X, target=torch.uint8, zero_point_dtype=torch.int8),
        ValueError,
        "use torch.int32",
    ),
    (lambda: choose(X.half(), target=torch.int32), ValueError, "overflow torch.float16"),
    (lambda: choose(X, zero_point_domain=FLOAT), ValueError, "pass preserve_zero=False"),
    (lambda: choose(X, zero_point_domain=NONE), ValueError, "use a symmetric mapping"),
    (lambda: choose(X, mapping=SYMMETRIC, preserve_zero=False), ValueError, "needs .*ASYMMETRIC"),
    (
        lambda: choose(
            X, zero_point_domain=FLOAT, preserve_zero=False, zero_point_dtype=torch.int8
        ),
        ValueError,
        "zero_point_dtype in the FLOAT domain is torch.int8",
    ),
    (lambda: quantize(X, S.T), ValueError, r"\(2, 4\), but there are \(4, 2\) blocks"),
    (lambda: quantize(X, S[:1, :1]), ValueError, r"scale has shape \(1, 1\)"),
    (lambda: quantize(X, S, S[0]), ValueError, r"zero_point has shape \(2,\)"),
    (lambda: quantize(X, S.double()), TypeError, "scale is torch.float64"),
    (lambda: quantize(X, S, S.double()), TypeError, "zero_point is torch.float64"),
    (lambda: quantize(X, S, S, zero_point_domain=NONE), ValueError, "pass zero_point=None"),
    (
        lambda: quantize(X.half(), S.half(), target=torch.int32),
        ValueError,
        "overflow torch.float16",
    ),
    (
        lambda: ours.dequantize_affine(X.int(), (1, 32), S, None, torch.int8),
        TypeError,
        "int32, but input_dtype says torch.int8",
    ),
    (
        lambda: ours.dequantize_affine(X, (1, 32), S, None, torch.uint4),
        TypeError,
        "integers that hold",
    ),
    (
        lambda: ours.dequantize_affine(
            X.char(), (1, 32), S, None, torch.int8, output_dtype=torch.int8
        ),
        ValueError,
        "output_dtype is torch.int8",
    ),
    (
        lambda: ours.choose_qparams_affine_with_min_max(S, S.half(), SYMMETRIC, (1,), torch.int8),
        TypeError,
        "give both one dtype",
    ),
    (
        lambda: ours.choose_qparams_affine_with_min_max(S, S[0], SYMMETRIC, (1,), torch.int8),
        ValueError,
        "give one of each a block",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=[e[2] for e in ERRORS])
def test_errors_say_what_to_do(call, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


# --- the same numbers as a format ---

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
        ((SYMMETRIC, (2, 3, 32), torch.int8), "tensor, channelA"),
        ((SYMMETRIC, (1, -1, 1), torch.int8), "pass shape="),
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
