# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values of elements against the reference (code, element, step, round, zero …)."""

from functools import cache

import pytest
import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic import philox
from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import TwoLevel
from tests.kernels.webgpu.wgsl.inputs import FEW, any_bits, beside
from tests.kernels.webgpu.wgsl.running import ProbeCode, run, same_bits, shader, words
from tests.support.some import crossed
from tests.support.webgpu_tables import LEVELS, OTHERS

COUNT = 1 << 13
SEED = torch.tensor([11, 5])
PLAIN = [
    "int8:group1:fp32", "int8:group1:e8m0/floor", "int8:group1:pow2/nearest", "int4:group1:fp32",
    "uint8:group1:fp32", "int2:group1:fp32", "int16:group1:fp32", "uint16:group1:e8m0/floor",
    "int4:group1:fp32:full", "uint1:group1:fp32", "int16:group1:e8m0/floor",
    "e4m3:group1:fp32", "e5m2:group1:fp32", "e2m1:group1:e8m0/floor", "e3m2:group1:e8m0/floor",
    "e2m3:group1:e8m0/floor", "e4m3:group1:e8m0/floor", "e5m2:group1:e8m0/floor",
    "log4:group1:fp32", "log8:group1:fp32", "log8:group1:e8m0/floor", "e7m0:group1:fp32",
    "e1m6r3:group1:fp32", "e2m1r1:group1:fp32", "e6m1:group1:e8m0/floor", "e5m2r0:group1:fp32",
]  # fmt: skip


def turning(fmt: Format) -> Tensor:
    """Numbers of steps where a code turns over to the next, their neighbours and those beyond."""
    element = fmt.element
    if element.bits > 9:
        high = element.limits(fmt.wide)[1]
        whole = torch.cat([torch.arange(300.0), high - torch.arange(300.0)])
    elif isinstance(element, Codebook):
        whole = torch.tensor([*element.thresholds, *element.table])
    else:
        values = element.decode(element.from_bits(torch.arange(2**element.bits)))
        whole = torch.cat([values[values.isfinite()].abs().unique(), values.new_tensor([300.0])])
    middles = ((whole[1:].double() + whole[:-1].double()) / 2).float()
    return beside(torch.cat([whole, middles, 1.25 * whole]), 2)


def asked(fmt: Format, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, float32 steps of the format's kind, of which four have one, and codes: [n] each."""
    made = torch.Generator().manual_seed(seed)
    y = turning(fmt)
    y = y[torch.randint(0, len(y), (4 * COUNT,), generator=made)]
    step = torch.exp2(torch.randint(-40, 40, (COUNT,), generator=made).float())
    step[: 3 * COUNT // 4] *= 1 + torch.rand(3 * COUNT // 4, generator=made)
    step[: COUNT // 4] = any_bits(COUNT // 4, seed + 1)
    step = step.repeat_interleave(4)
    x = [y * step, torch.randn(COUNT, generator=made), any_bits(COUNT, seed + 2), FEW.repeat(16)]
    few = FEW.repeat_interleave(16)
    steps = [step, any_bits(COUNT // 2, seed + 3).repeat_interleave(4), few]
    codes = torch.randint(0, 2**fmt.element.bits, (6 * COUNT + 256,), generator=made)
    return torch.cat(x), torch.cat(steps), codes


def beside_chance(x: Tensor, chance: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """x, every second number where its random number decides: about a code and u of the next."""
    count = torch.arange(len(x))
    y = (count // 2 % 3 + chance * 2.0**-24) * fmt.element.smallest * (-1.0) ** (count // 6)
    near = (y * step).float().view(torch.int32) + (count // 12 % 5 - 2).to(torch.int32)
    return torch.where(count % 2 == 0, near.view(torch.float32), x)


def stored(fmt: Format, step: Tensor) -> tuple[Tensor, Tensor]:
    """Steps -> scales as the format stores them (near those steps), and as a shader takes them."""
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo) and scale.byte:
        field = (step.view(torch.int32) >> 23) & 255
        return field.to(torch.uint8), field
    if isinstance(scale, PowerOfTwo):
        power = (step.view(torch.int32) & 0x7F800000).view(torch.float32)
        kept = torch.where(power.isfinite() & (power > 0), power, 1.0)
        return kept, kept
    if isinstance(scale, TwoLevel):
        patterns = step.view(torch.int32) % 2**scale.inner.element.bits
        return patterns.to(torch.uint8), patterns
    assert isinstance(scale, FloatScale)
    kept = step.to(scale.dtype)
    return kept, kept.float()


@cache
def drawn(count: int) -> Tensor:
    """The random numbers of SEED as the shader is given them: 24 bits each."""
    return (philox.uniform(torch.Size([count]), SEED, SEED.device) * 2**24).to(torch.int64)


def check(spelling: str, hardware: str, **parts: Tensor) -> None:
    """Codes of hard numbers and values of all codes, bit for bit.

    parts: fields of QParams besides the scale, each with a few numbers that are repeated
    """
    fmt = parse(spelling)
    x, step, codes = asked(fmt)
    scale, given = stored(fmt, step)
    others = {
        name: part.repeat(-(-len(x) // len(part)))[: len(x) // 4].repeat_interleave(4)
        for name, part in parts.items()
    }
    qparams = QParams(scale, **others)
    chance = drawn(len(x))
    if fmt.rounding == "stochastic":
        x = beside_chance(x, chance, step, fmt)
    zeros = torch.zeros(len(x))
    columns = [given] + [others.get(name, zeros) for name in ("zero_point", "outer", "offset")]
    once = [words(_float_if(c)[::4]) for c in columns]
    each = [words(c).view(-1, 4) for c in (x, chance, codes)]
    made = shader(ProbeCode, spelling, hardware)
    found = run(made, ("questions", "answers"), torch.cat(once + each, 1), 12)
    expected = fmt.element.to_bits(reference.quantize(x, qparams, fmt, SEED))
    _tell(found[:, :4].flatten() != expected, [x, *columns, found[:, :4].flatten(), expected])
    _tell(found[:, 8] != expected[::4], [c[::4] for c in (x, *columns, expected)])
    values = reference.dequantize(fmt.element.from_bits(codes), qparams, fmt, torch.float32)
    got = found[:, 4:8].flatten().view(torch.float32)
    _tell(~same_bits(got.view(torch.int32), values), [codes, *columns, got, values])
    _tell(~same_bits(found[:, 9], values[::4]), [c[::4] for c in (codes, *columns, values)])


def _tell(wrong: Tensor, about: list[Tensor]) -> None:
    """Fail, with the first wrong number and what belongs to it."""
    at = int(wrong.nonzero()[0]) if wrong.any() else 0
    assert not wrong.any(), (int(wrong.sum()), [column[at].item() for column in about])


def _float_if(x: Tensor) -> Tensor:
    """Floats of any type as float32, integers as they are."""
    return x.float() if x.is_floating_point() else x


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", crossed(3, PLAIN))
def test_nearest_even(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    ["int8:group1:fp32", "nf4:group1:fp32", "e4m3:group1:e8m0/floor", "log8:group1:fp32",
     "ternary:group1:fp32", "binary:group1:bf16"],
)  # fmt: skip
def test_floats_that_need_no_integers(fmt: str) -> None:
    check(fmt, "plain")


ONCE = ("int8:group1:fp32", "e4m3:group1:fp32", "log8:group1:fp32", "uint1:group1:e8m0/floor")
ROUNDED = (
    *ONCE, "int4:group1:e8m0/floor", "int16:group1:fp32", "uint8:group1:fp32",
    "e2m1:group1:e8m0/floor", "e7m0:group1:fp32", "log4:group1:fp32", "int4:group1:fp32:full",
    "e5m2:group1:(e4m3:group1:fp32)", "int10:group1:bf16:recip",
)  # fmt: skip


@pytest.mark.some(8)
@pytest.mark.parametrize("rounding", [r for r in ROUNDINGS if r != "nearest_even"])
@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[pytest.mark.slow] * (f not in ONCE)) for f in ROUNDED]
)
def test_other_roundings(fmt: str, rounding: str, hardware: str) -> None:
    outer = {"outer": OUTERS} if "(" in fmt else {}
    check(f"{fmt}:{rounding}", hardware, **outer)


ZEROS = torch.tensor([
    0, 1, 7, 8, 15, 100, 128, 255, 65535, -1, -9, 2**22 - 1, 2**22, -(2**22), 2**24 + 1, 2**31 - 1,
    -(2**31), 300, 12,
]).to(torch.int32)  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    ["uint8:group1:fp32:asym", "uint4:group1:fp32:asym", "int8:group1:e8m0/ceil:asym",
     "uint16:group1:fp32:asym", "int4:group1:fp32:asym:down", "uint8:group1:fp32:asym:stochastic"],
)  # fmt: skip
def test_integer_zero_points(fmt: str, hardware: str) -> None:
    check(fmt, hardware, zero_point=ZEROS)


FLOATS = torch.cat([torch.tensor([0.5, 7.25, 0.0, 0.0, -3.75, 127.5, 1e-3]), FEW[FEW.isfinite()]])


@pytest.mark.parametrize(
    "fmt", ["uint4:group1:fp32:asym(fp32)", "uint8:group1:bf16:asym(bf16):up",
            "int8:group1:e8m0/ceil:asym(fp16)"],
)  # fmt: skip
def test_float_zero_points(fmt: str, hardware: str) -> None:
    form = parse(fmt)
    assert form.zero is not None
    check(fmt, hardware, zero_point=form.zero.store_any(FLOATS))


@pytest.mark.parametrize(
    "fmt",
    ["int8:group1:bf16", "e2m1:group1:fp16", "uint4:group1:fp16:asym", "int4:group1:fp16:signed"],
)
def test_scales_of_16_bits(fmt: str, hardware: str) -> None:
    zeros = {"zero_point": ZEROS} if parse(fmt).asym else {}
    check(fmt, hardware, **zeros)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    ["int8:group1:fp32:recip", "int8:group1:bf16:recip", "e4m3:group1:fp32:recip",
     "uint4:group1:fp16:asym:recip", "e2m1:group1:(e4m3:group1:fp32):recip",
     "int8:group1:(e4m3:group1:fp32)/inv:recip", "log8:group1:fp32:recip:up"],
)  # fmt: skip
def test_products_with_the_reciprocal(fmt: str, hardware: str) -> None:
    parts = {"outer": OUTERS} if "(" in fmt else {"zero_point": ZEROS} if "asym" in fmt else {}
    check(fmt, hardware, **parts)


OUTERS = torch.cat([torch.exp2(torch.randn(64)), any_bits(32, 9).nan_to_num(), FLOATS])


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", LEVELS)
def test_two_levels(fmt: str, hardware: str) -> None:
    scale = parse(fmt).scale
    assert isinstance(scale, TwoLevel)
    check(fmt, hardware, outer=scale.outer_type.store_any(OUTERS))


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", OTHERS)
def test_binary_ternary_and_tables(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    ["int4:group1:fp16:offset", "nf4:group1:fp32:offset", "e2m1:group1:e8m0/ceil:offset",
     "uint8:group1:fp32:offset(bf16):recip", "int8:group1:fp32:offset:stochastic"],
)  # fmt: skip
def test_offsets(fmt: str, hardware: str) -> None:
    offset = parse(fmt).offset
    assert offset is not None
    check(fmt, hardware, offset=offset.type.store_any(FLOATS))
