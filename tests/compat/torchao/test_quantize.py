# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values are torchao's, bit for bit; the oracle is torchao itself."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.compat import torchao as ours
from blockscale.compat.torchao.dtypes import MappingType, Rule, ZeroPointDomain, read_rule
from tests.compat.torchao.inputs import (
    ASYMMETRIC,
    FLOAT,
    FLOAT8,
    FLOATS,
    INT,
    INTS,
    MAPPINGS,
    NONE,
    STORED,
    SYMMETRIC,
    awkward,
    every_block,
    every_dtype,
    every_mapping,
    overflows,
    same,
    their,
    theirs,
    ties,
)


def check_both_ways(
    x: Tensor, block: tuple[int, ...], scale: Tensor, zero, target, **limits
) -> None:
    q = theirs.quantize_affine(x, block, scale, zero, target, **limits)
    same(ours.quantize_affine(x, block, scale, zero, target, **limits), q)
    for out in FLOATS:
        args = (q, block, scale, zero, target)
        expected = theirs.dequantize_affine(*args, **limits, output_dtype=out)
        same(ours.dequantize_affine(*args, **limits, output_dtype=out), expected)


@pytest.mark.slow
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


@pytest.mark.slow
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


def check_fake(domain, x: Tensor, block, scale: Tensor, zero, target, *limits) -> None:
    """Values and all gradients of the round trip are torchao's."""

    def run(function, member) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_(), scale.clone().requires_grad_()]
        if zero is not None and zero.is_floating_point():
            leaves.append(zero.clone().requires_grad_())
        given_zero = leaves[2] if len(leaves) == 3 else zero
        low, high = limits or (None, None)
        y = function(*leaves[:1], block, leaves[1], given_zero, target, low, high, member)
        weights = torch.arange(1.0, y.numel() + 1).reshape(y.shape).to(y.dtype)
        return y.detach(), *torch.autograd.grad(y, leaves, weights)

    expected = run(theirs._fake_quantize_affine, theirs.ZeroPointDomain[domain.name])
    same(run(ours.fake_quantize_affine, domain), expected)


@pytest.mark.some(32)
@every_block
@every_dtype
def test_fake_quantize(block: tuple[int, ...], dtype: torch.dtype) -> None:
    x, targets = awkward(dtype), (torch.uint4, torch.int8, torch.float8_e4m3fn, torch.int4)
    for target, scale_dtype in itertools.product(targets, FLOATS):
        args = (block, target, None, None, None, scale_dtype, torch.int32)
        scale, zero = ours.choose_qparams_affine(x, ASYMMETRIC, *args, True)
        for data in (x, ties(scale, block, dtype), x * torch.nan):
            check_fake(INT, data, block, scale, zero, target)
            check_fake(INT, data, block, scale, zero.to(torch.bfloat16), target)
            check_fake(NONE, data, block, scale, None, target)
            check_fake(INT, data, block, scale, zero, torch.int32, -5, 6)
            middle = (zero * scale).to(dtype)
            check_fake(FLOAT, data, block, scale, middle, target)
            # middle code 2047.5: the difference is rounded in the codes' own dtype
            check_fake(FLOAT, data, block, scale, middle, torch.int16, 0, 4094)


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


@pytest.mark.slow
@settings(max_examples=100)
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
    y = y + ours.dequantize_affine(q, x.shape, scale, middle, torch.int8, **domain)
    return y + ours.fake_quantize_affine(x, x.shape, scale, middle, torch.int8, **domain)


class RoundTrip(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return round_trip(x)


@pytest.mark.slow
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


@pytest.mark.slow
def test_fake_quantize_is_the_round_trip_and_trains_under_compile() -> None:
    x, scale = torch.randn(4, 64), torch.rand(4, 2) / 30 + 0.01
    q = ours.quantize_affine(x, (1, 32), scale, None, torch.int8)
    expected = ours.dequantize_affine(q, (1, 32), scale, None, torch.int8)

    def fake(x: Tensor) -> Tensor:
        return ours.fake_quantize_affine(x, (1, 32), scale, None, torch.int8)

    for function in (fake, torch.compile(fake, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        assert torch.equal(y, expected)
        [gradient] = torch.autograd.grad(y.sum(), leaf)
        codes = (x.reshape(4, 2, 32) * (1 / scale[..., None])).round().reshape(4, 64)
        inside = (codes >= -128) & (codes <= 127)
        assert not inside.all()
        step = scale.repeat_interleave(32, 1)
        assert torch.equal(gradient, torch.where(inside, step * (1 / step), 0))


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


SYMMETRIC_of_rule, NO_CLIPPING, ASYMMETRIC_of_rule = MappingType
INT_of_rule, FLOAT_of_rule, NONE_of_rule = ZeroPointDomain

# Those that torchao's separate functions compute, and no others.
MEANT = {
    (SYMMETRIC_of_rule, INT_of_rule, True), (NO_CLIPPING, INT_of_rule, True),
    (ASYMMETRIC_of_rule, INT_of_rule, True),
    (ASYMMETRIC_of_rule, INT_of_rule, False), (ASYMMETRIC_of_rule, FLOAT_of_rule, False),
    (SYMMETRIC_of_rule, NONE_of_rule, True), (NO_CLIPPING, NONE_of_rule, True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mapping", "domain", "preserve_zero"),
    list(itertools.product(MappingType, ZeroPointDomain, (True, False))),
)
def test_every_combination(
    mapping: MappingType, domain: ZeroPointDomain, preserve_zero: bool
) -> None:
    if (mapping, domain, preserve_zero) in MEANT:
        assert read_rule(mapping, domain, preserve_zero) == Rule(mapping, domain, preserve_zero)
    else:
        with pytest.raises(ValueError, match=r"pass preserve_zero=False|needs|use a symmetric"):
            read_rule(mapping, domain, preserve_zero)


def test_what_is_no_member() -> None:
    with pytest.raises(TypeError, match=r"expected a MappingType .*found 'SYMMETRIC'"):
        read_rule("SYMMETRIC", INT_of_rule, True)
    with pytest.raises(TypeError, match=r"expected a ZeroPointDomain .*found"):
        read_rule(SYMMETRIC_of_rule, SYMMETRIC_of_rule, True)
