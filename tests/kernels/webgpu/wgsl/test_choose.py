# SPDX-License-Identifier: BSD-3-Clause
"""Scales, zero points and offsets of ranges against the reference (wgsl/choose.wgsl)."""

import pytest
import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.parse import parse
from tests.kernels.webgpu.wgsl.inputs import FEW, any_bits, beside
from tests.kernels.webgpu.wgsl.running import ProbeChoose, run, shader, words
from tests.support.same import bits
from tests.support.webgpu_tables import LEVELS, OTHERS

COUNT = 1 << 14
RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
PLAIN = [
    *(f"{e}:group1:fp32" for e in ("int8", "int4", "uint8", "e4m3", "e2m1", "log4", "int16")),
    *("int4:group1:fp32:full", "int4:group1:fp32:half", "int4:group1:fp32:signed"),
    *(f"{e}:group1:e8m0/{rule}" for e in ("e4m3", "e2m1", "int8", "uint4") for rule in RULES),
    *(f"{e}:group1:pow2/{rule}" for e in ("e3m2", "int8") for rule in RULES),
    *("log8:group1:e8m0/ceil", "int8:group1:e8m0/floor:full", "e6m1:group1:e8m0/even"),
]


def given_ranges(*, bare: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Low and high ends, float32 [n], and which are poisoned."""
    largest = torch.tensor([1.0, 7.0, 7.5, 127.0, 448.0, 6.0, 28.0, 1.75, 1.875, 255.0, 15.0])
    root = torch.tensor(0x3FB504F3, dtype=torch.int32).view(torch.float32)  # below that of 2
    edges = beside(torch.cat([largest, largest * root]), 2)
    edges = edges * torch.exp2(torch.arange(-140.0, 120.0, 7.0))[:, None]
    a = torch.cat([any_bits(COUNT, 1), torch.randn(COUNT), edges.flatten(), FEW])
    b = torch.cat([any_bits(COUNT, 2), torch.randn(COUNT), edges.flatten() * 0.9, FEW.flip(0)])
    good = a.isfinite() & b.isfinite()
    a, b = a[good], b[good]
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    if not bare:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    return low, high, torch.arange(len(low)) % 97 == 5


def check(spelling: str, hardware: str) -> None:
    fmt = parse(spelling)
    low, high, poisoned = given_ranges(bare=fmt.offset is not None)
    if not fmt.element.uses_range:
        low = -high  # of a mean
    if not fmt.scale.poisons:
        poisoned = torch.zeros_like(poisoned)
    expected = reference.qparams_from_range(low, high, poisoned, fmt)
    a = reference.numerator(low, high, fmt)
    asked = words(low, high, poisoned, torch.where(poisoned, 0.0, a))
    found = run(shader(ProbeChoose, spelling, hardware), ("given", "found"), asked, 5)
    kept = [found[:, 0], found[:, 2]]
    wanted: list[Tensor | None] = [a, expected.scale]
    kept += [found[:, 1], found[:, 3], found[:, 4]]
    wanted += [expected.outer, expected.zero_point, expected.offset]
    for name, column, tensor in zip(
        ("numerator", "scale", "outer", "zero", "offset"), kept, wanted, strict=True
    ):
        if tensor is None:
            continue
        wide = tensor.float() if tensor.is_floating_point() else tensor.to(torch.int32)
        wrong = bits(column.view(wide.dtype)) != bits(wide)
        at = int(wrong.nonzero()[0]) if wrong.any() else 0
        assert not wrong.any(), (
            name, int(wrong.sum()), low[at], high[at], column.view(wide.dtype)[at], wide[at]
        )  # fmt: skip


@pytest.mark.parametrize(
    "fmt", ["int8:group1:fp32", "e2m1:group1:(e4m3:group1:fp32)", "uint8:group1:fp32:asym"]
)
def test_floats_that_need_no_integers(fmt: str) -> None:
    check(fmt, "plain")


@pytest.mark.some(6)
@pytest.mark.parametrize("fmt", PLAIN)
def test_scales_of_one_level(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt",
    ["uint8:group1:fp32:asym", "uint4:group1:e8m0/floor:asym", "int8:group1:fp32:asym",
     "uint16:group1:e8m0/nearest:asym", "uint4:group1:pow2/ceil:asym", "uint2:group1:fp32:asym"],
)  # fmt: skip
def test_zero_points(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.parametrize(
    "fmt",
    ["uint4:group1:fp32:asym(fp32)", "uint4:group1:fp16:asym(fp16)", "int4:group1:fp16:asym",
     "int8:group1:bf16:asym(bf16)", "uint4:group1:e8m0/floor:asym(fp32)"],
)  # fmt: skip
def test_float_zero_points(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", [*LEVELS, "uint4:group1:(uint6:group1:fp16):asym"])
def test_two_levels(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", OTHERS)
def test_binary_ternary_and_tables(fmt: str, hardware: str) -> None:
    check(fmt, hardware)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    ["int4:group1:fp16:offset", "nf4:group1:fp32:offset", "e2m1:group1:e8m0/ceil:offset",
     "uint8:group1:fp32:offset(bf16)", "e4m3:group1:bf16:offset", "log4:group1:pow2/ceil:offset",
     "nf4:group1:(e4m3:group1:fp32):offset", "int8:group1:bf16:signed", "int4:group1:fp16:full"],
)  # fmt: skip
def test_offsets_and_spans(fmt: str, hardware: str) -> None:
    check(fmt, hardware)
