# SPDX-License-Identifier: BSD-3-Clause
"""Neighbours of 16 bits that are taken two and two."""

import re

import pytest
import torch
import triton
import triton.language as tl

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.kernels.cuda.device import lanes
from blockscale.kernels.cuda.device.lanes import (
    Narrowing,
    for_both,
    greater_in_pairs,
    join_pairs,
    narrowing,
    rounded_down,
    split_pairs,
)
from blockscale.kernels.cuda.spec import spec
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE
from tests.support.same import same

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_pairs_that_do_not_start_at_four_bytes() -> None:
    """Numbers of 16 bits are read two and two: where they lie otherwise they move first."""
    x = torch.randn(1 + 4 * 32).bfloat16().to(DEVICE)[1:].reshape(4, 32)
    assert x.data_ptr() % 4 == 2
    for fmt in ("int8:group32:fp32", "mxfp4", "ternary:group16:fp32"):
        with bs.use("cuda"):
            found = P.choose_quantize(x, fmt, None)
        with bs.use("reference"):
            expected = P.choose_quantize(x, fmt, None)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), fmt


@triton.jit
def _joined(word, out, dtype: tl.constexpr, n: tl.constexpr):
    at = tl.arange(0, n)
    first, second = split_pairs(tl.load(word + at), dtype)
    tl.store(out + at, join_pairs(first, second, dtype))


KINDS = [(torch.bfloat16, tl.bfloat16), (torch.float16, tl.float16)]


@pytest.mark.parametrize(("dtype", "kind"), KINDS, ids=str)
def test_pairs_are_split_and_joined_again(dtype: torch.dtype, kind: tl.dtype) -> None:
    """Every finite number of 16 bits, beside another."""
    numbers = torch.arange(2**16).to(torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()][: 2**14 * 3].repeat(2)[: 2**16]
    word = numbers.view(torch.int16).view(torch.int32).to(DEVICE)
    out = torch.empty_like(word)
    _joined[(1,)](word, out, dtype=kind, n=len(word))
    assert torch.equal(out, word)


@triton.jit
def _down(x, out, dtype: tl.constexpr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, rounded_down(tl.load(x + at), dtype))


@pytest.mark.parametrize(("dtype", "kind"), KINDS, ids=str)
def test_bounds_are_rounded_down(dtype: torch.dtype, kind: tl.dtype) -> None:
    """To the largest number of 16 bits that is not above them."""
    x = (torch.rand(1024) * 2.0 ** torch.randint(-14, 15, (1024,))).to(DEVICE)
    x[:8] = torch.arange(8.0)
    out = torch.empty(1024, dtype=torch.int32, device=DEVICE)
    _down[(1,)](x, out, dtype=kind, n=1024)
    below, above = (bits.to(torch.int16).view(dtype).double() for bits in (out, out + 1))
    assert bool((below <= x.double()).all())
    assert bool((above > x.double()).all())


@triton.jit
def _above(a, b, out, dtype: tl.constexpr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, greater_in_pairs(tl.load(a + at), tl.load(b + at), dtype))


@pytest.mark.parametrize(("dtype", "kind"), KINDS, ids=str)
def test_pairs_are_compared(dtype: torch.dtype, kind: tl.dtype) -> None:
    ends = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 2.0**-14]
    a, b = (x.flatten().to(dtype) for x in torch.meshgrid(*[torch.tensor(ends)] * 2, indexing="ij"))
    out = torch.empty(32, dtype=torch.int32, device=DEVICE)
    given = [x.view(torch.int16).view(torch.int32).to(DEVICE) for x in (a, b)]
    _above[(1,)](*given, out, dtype=kind, n=32)
    assert torch.equal(out.cpu().view(torch.int16), -(a > b).to(torch.int16))


def test_one_instruction_for_both() -> None:
    """Of either type; of another there is none."""
    assert plain(for_both("set.gt.u32.{} $0;", tl.float16)) == "set.gt.u32.f16x2 $0;"
    assert plain(for_both("cvt.rn.{}.f32 $0;", tl.bfloat16)) == "cvt.rn.bf16x2.f32 $0;"
    with pytest.raises(KeyError):
        for_both("{}", tl.float32)


def plain(value: object) -> object:
    return getattr(value, "value", value)


@pytest.mark.parametrize(
    ("fmt", "how"),
    [
        ("mxfp4", "bytes"), ("mxfp6", "word"), ("mxfp6_e2m3", "word"),
        ("log4:group32:fp32", "powers"), ("log4:group32:bf16", "powers"),
        ("log4:group32:e8m0/floor", ""), ("e2m1:group32:fp32", ""), ("mxfp8", ""), ("mxint8", ""),
        ("e2m1:group32:e8m0/floor:stochastic", ""), ("nvfp4", ""),
        ("binary", ""), ("log4:group32:fp32:recip", ""), ("log3:group32:fp32", ""),
    ],
)  # fmt: skip
def test_what_narrows(fmt: str, how: str) -> None:
    assert narrowing(spec(str(parse(fmt)))).how == how


@pytest.mark.parametrize(
    ("fmt", "arguments"), [("mxfp4", 8), ("mxfp6", 2), ("log4:group32:fp32", 12)]
)
def test_instructions_name_all_that_they_are_given(fmt: str, arguments: int) -> None:
    """And write their result once."""
    ptx = narrowing(spec(str(parse(fmt)))).ptx
    used = [int(n) for n in re.findall(r"\$(\d+)", ptx)]
    assert set(used) == set(range(arguments + 1))
    assert used.count(0) == 1
    assert ptx.startswith("{ .reg")
    assert ptx.endswith("}")
    assert ptx.count("{") == ptx.count("}") == 1
    assert "{second}" not in ptx
    assert "{third}" not in ptx


def test_a_number_twice() -> None:
    assert lanes.both(1.0) == "0x3F803F80"
    assert lanes.both(-2.0) == "0xC000C000"


def test_no_way_is_the_default() -> None:
    assert Narrowing() == Narrowing("", "")
