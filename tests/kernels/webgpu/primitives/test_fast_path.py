# SPDX-License-Identifier: BSD-3-Clause
"""What is quantized in one pass that asks for all its memory first, and that it is right."""

from itertools import product
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.primitives import form, plan
from blockscale.kernels.webgpu.primitives.form import STEP, geometry
from blockscale.kernels.webgpu.primitives.plan import Lines, Settings
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import hard
from tests.support.same import same
from tests.support.webgpu_fast_path import (
    FULL,
    HALF,
    ROWS,
    TILES,
    made,
    planned,
    reach_of,
    right,
    unruly,
)

FORMATS = (
    "mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e2m3", "mxfp4", "mxint8", "bfp8", "int8:group32:fp32",
    "int4", "int2:group32:fp32", "uint8:group32:fp32:asym", "e4m3:group32:fp32", "nvfp4",
    "e2m1:group16:(e4m3:token:fp32)", "nf4", "book(-1,-0.5,0,0.25,1):group32:fp32",
    "int8:group32:e8m0/floor:stochastic", "e2m1:group32:e8m0/floor:stochastic", ROWS, "ternary",
    "binary", TILES, "e4m3:tile128x128:fp32", "int8:group128:fp32",
)  # fmt: skip
KINDS = list(product(FORMATS, (FULL, HALF), ("codes", "values")))


def numbers(fmt: str, dtype: torch.dtype, blocks: int = 64) -> torch.Tensor:
    """Unruly ones, as many a row as a block has: of tiles and of whole rows few."""
    block = parse(fmt).block
    if block.name.startswith("tile"):
        return unruly(block.sizes[0][1] * 2, 256, dtype)
    if block.name in ("token", "channel0"):
        return unruly(19, 2048, dtype)
    return unruly(blocks, geometry((4096,), block).block, dtype)


@pytest.fixture(autouse=True)
def _lavapipe_tells_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "dtype", "what"), KINDS)
def test_what_is_made(fmt: str, dtype: torch.dtype, what: str) -> None:
    x = numbers(fmt, dtype)
    assert planned(fmt, x, what) is not None
    assert right(x, fmt, what)


SETTINGS = [
    Settings(units, blocks, 256, together)
    for units, blocks, together in product((1, 2, 4, 8), (1, 2), (False, True))
]


def possible(fmt: str, dtype: torch.dtype, what: str) -> list[Settings]:
    x = numbers(fmt, dtype)
    those = [each for each in SETTINGS if what == "codes" or not each.together]
    return [each for each in those if planned(fmt, x, what, each) is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "dtype", "what"), KINDS)
def test_every_setting(
    fmt: str,
    dtype: torch.dtype,
    what: str,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that both dtypes can have take turns between them."""
    x, lines = numbers(fmt, dtype), plan.lines
    with bs.use("reference"):
        expected = made(x, fmt, what)
    settings = possible(fmt, dtype, what)
    if not pytestconfig.getoption("--every-case"):
        other = possible(fmt, HALF if dtype == FULL else FULL, what)
        settings = [each for each in settings if each not in other or turn(each) == (dtype == HALF)]
    assert settings
    for given in settings:

        def forced(*arguments: Any, given: Settings = given) -> Lines | None:
            return lines(*arguments, given if arguments[3] == what else None)

        with monkeypatch.context() as patch, bs.use("webgpu"):
            patch.setattr(plan, "lines", forced)
            found = made(x, fmt, what)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), given


def turn(given: Settings) -> bool:
    """Another one for the next number of units, for the next of blocks, and for neighbours."""
    return (given.units in (2, 8)) ^ (given.blocks == 2) ^ given.together


def beside_ties(fmt: str, dtype: torch.dtype, rows: int = 96) -> torch.Tensor:
    """Rows of which the first number is the largest and others are a few ulps beside ties, of steps
    that are any numbers."""
    made = torch.Generator().manual_seed(3)
    element, block = parse(fmt).element, geometry((4096,), parse(fmt).block).block
    codes = torch.arange(2**element.bits).to(element.code_dtype)
    values = torch.unique(element.decode(codes).float())
    values = values[values.isfinite()]
    top = torch.rand(rows, 1, generator=made) + 1
    top[::3] = top[::3].bfloat16().float()
    halves = (values[1:] + values[:-1]) / 2
    chosen = halves[torch.randint(0, len(halves), (rows, block - 1), generator=made)]
    tie = (chosen.double() * (top / values.max()).double()).float()
    beside = torch.randint(-4, 5, tie.shape, generator=made, dtype=torch.int32)
    x = torch.cat([top, (tie.view(torch.int32) + beside).view(torch.float32)], 1)
    x[1::5] *= 1e-25
    x[2::7] *= 1e20
    return x.to(dtype)


def beside_zero_points(rows: int = 96, block: int = 32) -> torch.Tensor:
    """Of uint8 with a zero point: no numbers below 0 but, in every other row, ties at the ends."""
    made = torch.Generator().manual_seed(3)
    top = torch.rand(rows, 1, generator=made) + 1
    step = top / 255
    half = torch.randint(0, 255, (rows, block - 1), generator=made) + 0.5
    top[::2] -= step[::2] * 40.5
    half[::2] = half[::2].clamp(max=255 - 42)
    half[::2, 0] = -40.5
    tie = (half.double() * step.double()).float()
    beside = torch.randint(-2, 3, tie.shape, generator=made, dtype=torch.int32)
    return torch.cat([top, (tie.view(torch.int32) + beside).view(torch.float32)], 1)


TIED = ("int8:group32:fp32", "int4", "int2:group32:fp32", "e4m3:group32:fp32", "e2m1:group32:fp32",
        "nvfp4", "nf4", "uint8:group32:fp32:asym")  # fmt: skip


@pytest.mark.some(12)
@pytest.mark.parametrize(
    ("fmt", "dtype", "what"), list(product(TIED, (FULL, HALF), ("codes", "values")))
)
def test_divisions_that_are_ulps_off(
    fmt: str, dtype: torch.dtype, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As WGSL allows; subnormals are flushed, too."""
    monkeypatch.setattr(form, "HARDWARE", "flushing")
    x = beside_ties(fmt, dtype)
    assert planned(fmt, x, what) is not None
    assert right(x, fmt, what) and right(numbers(fmt, dtype), fmt, what)
    if "asym" in fmt:
        assert right(beside_zero_points(), fmt, what)


@pytest.mark.some(2)
@pytest.mark.parametrize("hardware", ["plain", "flushing"])
def test_scales_beside_ties(hardware: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two levels: blocks whose scale, in outer scales, is a few ulps beside a tie of e4m3."""
    monkeypatch.setattr(form, "HARDWARE", hardware)
    values = (
        parse("e4m3:group32:fp32").element.decode(torch.arange(8, 127, dtype=torch.uint8)).float()
    )
    ties = ((values[1:] + values[:-1]) / 2).repeat_interleave(9)
    top = torch.tensor(1.7123456)
    largest = (ties.double() * (top / (6 * 448)).double() * 6).float().view(torch.int32)
    largest = (largest + torch.arange(-4, 5, dtype=torch.int32).repeat(118)).view(torch.float32)
    x = torch.cat([top[None], largest])[:, None] * torch.linspace(-1, 1, 16)
    assert right(x, "nvfp4", "codes") and right(x, "nvfp4", "values")


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["nf4:group16:e4m3", "nf4:group16:(e4m3:token:fp32)"])
def test_numbers_beyond_a_table(fmt: str) -> None:
    """Of scales that were rounded down."""
    for dtype, what in product((FULL, HALF), ("codes", "values")):
        x = torch.randn(48, 64).to(dtype)
        assert planned(fmt, x, what) is not None
        assert right(x, fmt, what)


@pytest.mark.some(2)
@pytest.mark.parametrize("values", ["-0.25,0,0.125,0.5,1", "-1,-0.5,-0.125,0.125,0.25"])
def test_tables_that_reach_less_far_on_one_side_are_not_taken(values: str) -> None:
    x, fmt = torch.randn(48, 64), f"book({values}):group32:fp32"
    assert planned(fmt, x, "values") is None
    assert right(x, fmt, "values") and right(x, fmt, "codes")


def test_beside_the_first_tie() -> None:
    """Half of a step lies at a power of two: below it float32 has twice as many numbers, all of
    which round to 0, as the tie does."""
    step = (torch.arange(1, 4001) * 2.0 + 1) / 4096 + 1
    near = (step.double() / 2).float().view(torch.int32)
    x = torch.stack([(near + k).view(torch.float32) for k in range(-3, 4)], 1)
    x = torch.cat([step[:, None], x, -x, torch.zeros(len(step), 17)], 1)
    assert right(x, "int2:group32:fp32", "values")


@pytest.mark.some(2)
@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize(("what", "fmt"), [("values", "mxfp8"), ("codes", "mxfp4")])
def test_the_last_workgroup_is_seldom_full(what: str, fmt: str, over: int) -> None:
    assert right(unruly(2 * 128 + over, 32, FULL), fmt, what)


@pytest.mark.some(2)
@pytest.mark.parametrize("first", [0, 3, 2**33 + 4, 2**32 - 4])
def test_random_numbers_from_anywhere(first: int) -> None:
    """Those of four elements are drawn together, if a tensor begins with a four."""
    for fmt in ("int8:group32:e8m0/floor:stochastic", "e2m1:group32:e8m0/floor:stochastic"):
        x = numbers(fmt, FULL, 16)
        x[1] = torch.tensor(2.0**-130)  # less than the device tells from 0, and rounded up at 0
        assert right(x, fmt, "codes", first) and right(x, fmt, "values", first)


def test_given_scales_and_nothing() -> None:
    x = hard((4, 64), FULL)
    by = P.from_list(P.choose_qparams(x, "mxfp8"), parse("mxfp8"))
    by = Quantizer(by.scale + 1, None, None, str(parse("mxfp8")))
    with bs.use("reference"):
        expected = P.fake_quantize(x, by), P.quantize(x, by)
    with bs.use("webgpu"):
        assert same(P.fake_quantize(x, by), expected[0]) and same(P.quantize(x, by), expected[1])
    assert right(torch.ones(0, 32), "mxfp8", "values") and right(
        torch.ones(0, 32), "mxfp8", "codes"
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["values", "codes"])
@pytest.mark.parametrize("fmt", ["mxfp8", "nvfp4", TILES])
def test_tensors_in_pieces(fmt: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "largest", lambda bits, step=STEP: STEP // step * step or step)
    x = hard((96, 2048), FULL)
    assert planned(fmt, x, what) is not None
    assert right(x, fmt, what)
