# SPDX-License-Identifier: BSD-3-Clause
"""Which way each format of each shape goes, and how much an invocation takes."""

import itertools
from functools import partial

import pytest
import torch

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.primitives import fast_path, plan
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.plan import Settings
from tests.kernels.webgpu.equal import hard
from tests.support.webgpu_fast_path import FULL, HALF, OTHER, ROWS, TILES, planned, reach_of, right


@pytest.fixture(autouse=True)
def _lavapipe_tells_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 8)


def test_what_an_invocation_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 32)
    f = form("int8:group32:fp32")
    found = plan.lines(f, FULL, (64, 64), "codes")
    assert found is not None and found.settings == Settings(4, together=True) and found.team == 2
    assert found.blocks_a_group == 128
    found = plan.lines(f, HALF, (64, 64), "values")
    assert found is not None and found.settings == Settings(2) and found.team == 2
    found = plan.lines(form(ROWS), FULL, (64, 16384), "codes")
    assert found is not None and found.settings == Settings(8) and found.group == found.team == 512
    found = plan.lines(form(TILES), HALF, (64, 64), "codes")
    assert found is not None and found.tile == 4 and found.step % (32 * 64) == 0
    found = plan.lines(form("nvfp4"), FULL, (64, 64), "outer")
    assert found is not None and found.settings == Settings(1, 8)


ELSE = [
    ("mxfp8", (4, 64), OTHER),
    ("int8:group32:bf16", (4, 64), FULL),
    ("int8:group32:fp32:full", (4, 64), FULL),
    ("int8:group32:fp32:recip", (4, 64), FULL),
    ("int8:group32:fp32:stochastic", (4, 64), FULL),
    ("int8:group32:e8m0/floor:down", (4, 64), FULL),
    ("uint8:group32:fp32:asym:stochastic", (4, 64), FULL),
    ("uint4:group32:fp16:offset", (4, 64), FULL),
    ("int16:group32:fp32", (4, 64), FULL),
    ("book(-1,1):group32:fp32", (4, 64), FULL),  # its threshold is 0
    ("fp4:group32:fp32", (4, 64), FULL),  # two of its thresholds are close
    ("iq4_nl:group32:fp32", (4, 64), FULL),  # its ends differ
    ("ternary:group32:fp16", (4, 64), FULL),
    ("mxfp8", (4, 60), FULL),  # cut off
    ("mxfp8", (60,), FULL),
    ("mxfp8", (1,), FULL),
    ("mxfp8", (2, 12), FULL),  # three units are no power of two
    ("int8:tile3x32:fp32", (4, 64), FULL),
]


def test_all_else_is_left_to_other_ways() -> None:
    for what, (fmt, shape, dtype) in itertools.product(("values", "codes"), ELSE):
        assert planned(fmt, hard(shape, dtype), what) is None, (what, fmt, shape, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["values", "codes"])
@pytest.mark.parametrize(("fmt", "shape", "dtype"), ELSE)
def test_all_else_stays_where_it_was(
    what: str, fmt: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert right(hard(shape, dtype), fmt, what)


def test_a_team_is_within_reach_however_many_blocks_it_takes() -> None:
    x = torch.zeros(4, 256)
    fits = partial(planned, "mxint8", x, "codes")  # of whose scales four are a word
    assert fits(Settings(4)) and not fits(Settings(2)) and fits(Settings(2, 2))
    assert planned("int8:group128:fp32", x, "codes", Settings(1)) is not None  # beyond reach


def test_a_device_has_to_have_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, 64)
    assert planned("mxfp8", x, "codes") is not None
    reach_of(monkeypatch, 2)
    assert planned("mxfp8", x, "codes") is None and planned("mxfp8", x, "values") is not None
    with monkeypatch.context() as without:
        without.setattr(gpu(), "features", frozenset())
        assert planned("mxfp8", x, "values") is None
    with monkeypatch.context() as without:
        without.setitem(gpu().limits, "max-compute-invocations-per-workgroup", 128)
        assert planned("mxfp8", x, "values") is None
    rows = torch.zeros(2, 16384)
    assert planned(ROWS, rows, "values") is not None
    with monkeypatch.context() as without:
        without.setitem(gpu().limits, "max-compute-workgroup-storage-size", 6000)
        assert planned(ROWS, rows, "values") is None
        assert planned("mxfp8", x, "values") is not None  # neighbours do not meet there
    with monkeypatch.context() as without:
        without.setattr(fast_path, "refusal", lambda: "left out")
        assert planned("mxfp8", x, "values") is None
    with monkeypatch.context() as without:
        without.setattr(plan, "largest", lambda bits, step: 0)
        assert planned("mxfp8", x, "values") is None
    monkeypatch.setenv(ARITHMETIC, "native")
    assert planned("mxfp8", x, "values") is None


def test_neighbours_of_a_subgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 4 <= plan.reach() <= 32


# Which way a format of each kind goes: one pass over lines (l), tiles (t), columns (c) or by teams
# (m), or two passes (2); "-" where a block does not fit. A word for float32 and one for float16,
# a letter for each of SHAPES.

SHAPES = {
    "rows of whole blocks": (64, 256),
    "rows of three blocks or so": (4, 96),
    "long rows": (2, 4, 3072),
    "rows that are cut off": (6, 50),
    "one dimension, cut off": (300,),
    "four dimensions": (2, 4, 6, 32),
}
WAYS = {
    "int8": "lmmmmm mmmmmm",
    "int8_channel": "lmm22m mmm22m",
    "int8_token": "lmm2ml mmm2mm",
    "int8_pow2": "mmmmmm mmmmmm",
    "int16": "mmmmmm mmmmmm",
    "uint8": "lmmmmm mmmmmm",
    "uint16": "mmmmmm mmmmmm",
    "int4": "lml2ml mmm2mm",
    "uint4": "lml2ml mmm2mm",
    "int2": "l2l2ml m2m2mm",
    "nf4": "l2l2ml m2m2mm",
    "ternary": "lmm22m mmm22m",
    "binary": "lmm22m mmm22m",
    "log4": "lmm22m mmm22m",
    "fp8": "lmmmmm mmmmmm",
    "fp8_e5m2": "lmmmmm mmmmmm",
    "mxfp8": "lll2ml mmm2mm",
    "mxfp8_e5m2": "lll2ml mmm2mm",
    "mxfp6": "lll2ml mmm2mm",
    "mxfp6_e2m3": "lll2ml mmm2mm",
    "mxfp4": "lll2ml mmm2mm",
    "mxint8": "lll2ml mmm2mm",
    "nvfp4": "lll2ml mmm2mm",
    "bfp8": "l2l2ml m2m2mm",
    "bfp16": "m2m2mm m2m2mm",
    "int8:tile32x32:fp32": "ttt2-m 2222-m",
    "int8:tile4x8:fp32": "ttt2-2 2222-2",
    "int8:group32@0:fp32": "ccc2mc 2222m2",
    "uint8:group32@0:fp32:asym": "2222m2 2222m2",
    "int8:block2x3x2:fp32": "--2--2 --2--2",
    "int8:group6:fp32": "222222 222222",
    "int8:flat48:fp32": "mmmmmm mmmmmm",
    "int8:tensor:fp32": "lmmmmm mmmmmm",
    "int8:group32:fp32:stochastic": "mmm2mm mmm2mm",
    "int8:group32:e8m0/floor:stochastic": "lll2ml mmm2mm",
    "uint4:group16:e4m3:asym": "mmm2mm mmm2mm",
    "int4:group32:fp16:offset": "mmm2mm mmm2mm",
    "nvfp4_token": "lll2ml mmm2mm",
    "int12:group24:e8m0": "2mm2m2 2mm2m2",
}
LETTERS = {plan.ColumnsPlan: "c", plan.Teams: "m", plan.TwoPasses: "2"}


def way(fmt: str, dtype: torch.dtype, shape: tuple[int, ...], what: str = "codes") -> str:
    """The letter of the plan of a format, a dtype and a shape."""
    f = form(str(parse(fmt)))
    try:
        f.scale_shape(shape)
    except ValueError:
        return "-"
    found = plan.plan(f, dtype, shape, what)
    if isinstance(found, plan.Lines):
        return "t" if found.tile else "l"
    return LETTERS[type(found)]


def test_which_way_each_format_goes() -> None:
    found = {
        fmt: " ".join(
            "".join(way(fmt, dtype, shape) for shape in SHAPES.values()) for dtype in (FULL, OTHER)
        )
        for fmt in WAYS
    }
    assert found == WAYS
    assert set(CATALOG) - set(WAYS) == {"nvfp4_e5m3"}  # restated before (kernels/restate.py)


def test_values_go_as_codes_do_or_in_fewer_passes() -> None:
    """They fill no words with neighbours'."""
    for fmt in WAYS:
        for shape in SHAPES.values():
            codes, values = way(fmt, FULL, shape), way(fmt, FULL, shape, "values")
            assert values == codes or codes in "m2", (fmt, shape)


def test_without_neighbours_teams_take_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu(), "features", frozenset())
    found = {fmt: way(fmt, FULL, (64, 256)) for fmt in WAYS}
    assert set(found.values()) == {"m", "2", "-"}
    assert found["mxfp4"] == "m" and found["int8:tile32x32:fp32"] == "2"


@pytest.mark.parametrize("first", [0, 3])
def test_random_numbers_that_begin_within_a_four_go_by_teams(first: int) -> None:
    f = form(str(parse("int8:group32:e8m0/floor:stochastic")))
    found = plan.plan(f, FULL, (64, 256), "codes", fours=first % 4 == 0)
    assert type(found) is (plan.Teams if first else plan.Lines)


CASES = [
    (fmt, dtype, shape)
    for fmt, ways in WAYS.items()
    for dtype, letters in zip((FULL, OTHER), ways.split(), strict=True)
    for shape, letter in zip(SHAPES.values(), letters, strict=True)
    if letter != "-"
]


@pytest.mark.some(50)
@pytest.mark.pairs
@pytest.mark.parametrize(("fmt", "dtype", "shape"), CASES)
@pytest.mark.parametrize("what", ["codes", "values"])
def test_every_way_gives_the_references_bits(
    fmt: str, dtype: torch.dtype, shape: tuple[int, ...], what: str
) -> None:
    assert right(hard(shape, dtype), fmt, what)
