# SPDX-License-Identifier: BSD-3-Clause
"""Tables give what the reference gives, for every code of every element and every function."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu import fused_tables
from blockscale.kernels.cpu.fused_tables import max_pool
from blockscale.ops.fused import FUSED
from tests.kernels.cpu.fused.given import UINT8, coded, every_code, fixed, rough
from tests.support.same import same
from tests.support.some import crossed

FORMATS = (
    *("int8", "uint8", "e4m3", "e5m2", "log8", "int4", "uint4", "e2m1", "e3m2", "nf4", "ternary"),
    *("uint8:asym", "int8:asym", "uint4:asym", "int8:recip"),
)
SPELLED = tuple(":".join([f.partition(":")[0], "tensor:fp32", *f.split(":")[1:]]) for f in FORMATS)
RESULTS = (UNQUANTIZED, fixed(UINT8, 2), fixed("e4m3:tensor:fp32", 2), fixed("int4:tensor:fp32", 2))
SETTINGS: dict[str, dict[str, Any]] = {
    "clamp": {"min": -0.5},
    **{op: {"other": 0.75} for op in fused_tables.OPS if op.endswith("_scalar")},
    "pow_scalar": {"exponent": 3.0},
}


def both(
    op: str, value: Value, y: Quantizer, dtype: torch.dtype, **more: Any
) -> list[list[Tensor]]:
    """By the reference and by the kernel."""
    found = []
    for backend in ("reference", "cpu"):
        with bs.use(backend):
            found.append(FUSED[op](value, dtype=dtype, y=y, **SETTINGS.get(op, {}), **more))
    return found


@pytest.mark.some(20)
@pytest.mark.parametrize("fmt", crossed(3, SPELLED))
def test_every_code(isa: str, fmt: str) -> None:
    value = every_code(fmt, 0.047)
    for op in fused_tables.OPS:
        for y in (*RESULTS, Quantizer(value.scale, value.zero_point, None, fmt)):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                (expected,), (found,) = both(op, value, y, dtype)
                assert same(found, expected), (op, y.fmt, dtype)


def test_settings_make_other_tables() -> None:
    value = every_code(UINT8, 0.1, 128)
    for op, settings in (
        ("gelu", [{"approximate": "none"}, {"approximate": "tanh"}]),
        ("leaky_relu", [{"negative_slope": 0.01}, {"negative_slope": 0.3}]),
        ("hardtanh", [{"min_val": -1.0, "max_val": 1.0}, {"min_val": -2.0, "max_val": 6.0}]),
    ):
        results = [both(op, value, UNQUANTIZED, torch.float32, **each) for each in settings]
        assert all(same(found[0], expected[0]) for expected, found in results)
        assert not torch.equal(results[0][1][0], results[1][1][0])


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", [(1,), (7,), (5, 33), (2, 3, 1), (1, 4099), (3, 70_001)])
@pytest.mark.parametrize("fmt", [UINT8, "int4:tensor:fp32", "e3m2:tensor:fp32"])
def test_every_place_is_looked_up(isa: str, fmt: str, shape: tuple[int, ...]) -> None:
    """In integers: where input and result have one scale, relu is the larger of code and zero."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    value = coded(x, fmt)
    for count in (1, 2):
        torch.set_num_threads(count)
        with bs.use("cpu"):
            same_scale = Quantizer(value.scale, value.zero_point, None, fmt)
            (found,) = FUSED["relu"](value, y=same_scale)
            (floats,) = FUSED["neg"](value)
        with bs.use("reference"):
            plain = bs.ops.primitives.dequantize(value.operand, torch.float32)
            codes = bs.ops.primitives.quantize(plain.relu(), same_scale)
        assert torch.equal(found, codes)
        assert same(floats, -plain)
        if fmt == UINT8:
            zero = int(value.zero_point)  # type: ignore[arg-type]
            assert torch.equal(found, value.data.clamp(min=zero))


def test_codes_that_lie_apart() -> None:
    value = coded(torch.randn(40, 30), UINT8)
    turned = value._replace(data=value.data.t(), size=40)
    (expected,), (found,) = both("neg", turned, fixed(UINT8, 2), torch.float32)
    assert same(found, expected)


def test_no_codes() -> None:
    value = coded(torch.empty(3, 0), "int8:tensor:fp32")
    (expected,), (found,) = (FUSED["neg"](value), FUSED["neg"](value, y=fixed(UINT8, 2)))
    assert expected.shape == found.shape == (3, 0)


def test_a_scale_that_changes_is_seen() -> None:
    """Also under inference mode, where torch counts no changes, and in each of the numbers."""
    with torch.inference_mode():
        value, y = every_code(UINT8, 0.05, 100), fixed(UINT8, 2)
        parts = [value.scale, value.zero_point, y.scale, y.zero_point]
        before = both("sigmoid", value, y, torch.float32)[1]
        for part in parts:
            assert part is not None
            part.add_(3)
            (expected,), (found,) = both("sigmoid", value, y, torch.float32)
            assert same(found, expected)
            assert not torch.equal(found, before[0])
            before = [found]


def test_a_scale_of_any_rank() -> None:
    value = every_code(UINT8, 0.05, 100)
    expected = FUSED["relu"](value)
    assert value.scale is not None and value.zero_point is not None
    for rank in (1, 3):
        parts = [part.reshape((1,) * rank) for part in (value.scale, value.zero_point)]
        moved = value._replace(scale=parts[0], zero_point=parts[1])
        with bs.use("cpu"):
            assert same(FUSED["relu"](moved)[0], expected[0])


def test_tables_are_forgotten() -> None:
    fused_tables._tables.clear()
    for i in range(fused_tables.MOST_TABLES + 3):
        value = every_code("int8:tensor:fp32", 0.01 + i / 1000)
        with bs.use("cpu"):
            FUSED["neg"](value)
    assert 0 < len(fused_tables._tables) <= fused_tables.MOST_TABLES


def test_what_no_table_is_for() -> None:
    """Several scales, 16 bits, chances and scales of results that are not there yet."""
    x = torch.randn(4, 32)
    refused = [
        (coded(x, "int8:token:fp32"), UNQUANTIZED),
        (coded(x, "int16:tensor:fp32"), UNQUANTIZED),
        (coded(x, "mxfp8"), UNQUANTIZED),
        (coded(x, "int8:tensor:fp32"), Quantizer(None, None, None, UINT8)),
        (coded(x, "int8:tensor:fp32"), Quantizer(None, None, None, "int8:token:fp32")),
    ]
    for value, y in refused:
        formats = tuple(parse(fmt) for fmt in (value.fmt, y.fmt) if fmt)
        assert not fused_tables.supports(formats, (value, torch.float32, y))
        with bs.use("reference"):
            expected = FUSED["abs"](value, y=y)
        found = FUSED["abs"](value, y=y)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    drawn = fixed("int8:tensor:fp32:stochastic", 2)._replace(seed=torch.tensor([1, 0]))
    value = coded(x, "int8:tensor:fp32")
    assert not fused_tables.supports((), (value, torch.float32, drawn))


def test_codes_that_are_none() -> None:
    value = coded(torch.randn(4, 32), "int8:tensor:fp32")
    with bs.use("cpu"), pytest.raises(ValueError, match=r"packed as torch\.int8 of shape"):
        FUSED["relu"](value._replace(data=value.data.to(torch.int16)))
    bad = fixed(UINT8, 2)._replace(scale=torch.full((1, 1), 0.1, dtype=torch.float64))
    with bs.use("cpu"), pytest.raises(ValueError, match="float64"):
        FUSED["relu"](value, y=bad)


FORMATS_of_binary = (
    "",
    "int8:tensor:fp32",
    UINT8,
    "int8:token:fp32",
    "mxfp8",
    "bfp8",
    "int4:group8:fp16",
)
SHAPES = ((1,), (3, 32), (2, 5, 96), (1, 4128), (40, 480))


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(fused_tables.KINDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_of_formats(isa: str, op: str, shape: tuple[int, ...]) -> None:
    x, z = rough(*shape), torch.randn(shape)
    y = Quantizer(None, None, None, "int8:token:fp32")
    results = (UNQUANTIZED, fixed(UINT8, len(shape)), fixed("e4m3:tensor:fp32", len(shape)), y)
    for i, left in enumerate(FORMATS_of_binary):
        for j, right in enumerate(FORMATS_of_binary[1:] if not left else FORMATS_of_binary):
            a, b = coded(x, left), coded(z, right)
            by = results[(i + j) % len(results)]
            with bs.use("reference"):
                expected = FUSED[op](a, b, y=by)
            assert _supports(a, b, by) or shape == (1,)
            found = FUSED[op](a, b, y=by)
            told = (left, right, by.fmt)
            assert all(same(p, q) for p, q in zip(found, expected, strict=True)), told


def _supports(a: Value, b: Value, y: Quantizer, *settings: float) -> bool:
    formats = tuple(parse(each.fmt) for each in (a, b, y) if each.fmt)
    return fused_tables.supports_two(formats, (a, b, *settings, torch.float32, y))


def test_threads() -> None:
    a, b = coded(torch.randn(70, 500), UINT8), coded(torch.randn(70, 500), "int8:token:fp32")
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        with bs.use("cpu"):
            found.append(FUSED["add"](a, b, y=fixed(UINT8, 2))[0])
    assert torch.equal(*found)


def test_numbers_that_are_odd(isa: str) -> None:
    odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, 3e38, 1.5]).repeat(9)
    a = Value(odd.repeat_interleave(72).reshape(72, 72))
    b = coded(odd.nan_to_num(0, 4, -4).clamp(-4, 4).repeat(72, 1), "int8:tensor:fp32")
    for op in fused_tables.KINDS:
        for y in (UNQUANTIZED, fixed(UINT8, 2), fixed("e5m2:tensor:fp32", 2)):
            with bs.use("reference"):
                expected = FUSED[op](a, b, y=y)
            with bs.use("cpu"):
                found = FUSED[op](a, b, y=y)
            assert same(found[0], expected[0])


def test_what_is_composed() -> None:
    x = torch.randn(4, 8)
    a, b = coded(x, UINT8), Value(x)
    assert _supports(a, b, UNQUANTIZED, 1.0)
    assert not _supports(a, b, UNQUANTIZED, 0.5)  # torch may fuse the product into the sum
    assert not _supports(b, b, UNQUANTIZED, 1.0)  # torch's own
    assert not _supports(a, Value(x[:1]), UNQUANTIZED)
    assert not _supports(a, Value(x.double()), UNQUANTIZED)
    assert not _supports(coded(x, "nvfp4"), b, UNQUANTIZED)
    assert not _supports(coded(x, "int8:channel1:fp32"), b, UNQUANTIZED)
    with bs.use("reference"):
        expected = FUSED["add"](a, Value(x[:1]), alpha=0.5)
    assert same(FUSED["add"](a, Value(x[:1]), alpha=0.5)[0], expected[0])


FORMATS_of_max_pool = (
    *("int8:tensor:fp32", "uint8:tensor:fp32:asym"),
    *("int8:tensor:fp32:full", "uint8:tensor:pow2/nearest"),
)
WINDOWS = [
    {"kernel_size": [2]},
    {"kernel_size": [3], "stride": (2,), "padding": (1,)},
    {"kernel_size": [3], "stride": (2,), "ceil_mode": True},
    {"kernel_size": [2], "stride": (3,), "padding": (1,), "ceil_mode": True},
    {"kernel_size": [3], "stride": (1,), "dilation": (2,)},
]


def coded_of_max_pool(fmt: str, shape: tuple[int, ...]) -> Value:
    torch.manual_seed(0)
    q = bs.quantize(torch.randn(shape) - 1, fmt)  # negative codes, so that padding shows
    return Value(q.codes, q.scale, q.zero_point, None, q.format.spelling, shape[-1])


@pytest.mark.parametrize(("fmt", "window"), crossed(3, FORMATS_of_max_pool, WINDOWS))
def test_the_references_bits(fmt, window) -> None:
    for count, shape in ((1, (2, 3, 11)), (2, (2, 3, 9, 11)), (3, (2, 3, 7, 5, 9))):
        value = coded_of_max_pool(fmt, shape)
        own = Quantizer(value.scale, value.zero_point, None, fmt)
        other = Quantizer(torch.full([1] * len(shape), 0.07), None, None, "int8:tensor:fp32")
        for y in (own, other, UNQUANTIZED):
            found = []
            for backend in ("reference", "cpu"):
                with bs.use(backend):
                    found.append(FUSED[f"max_pool{count}d"](value, y=y, **window))
            assert same(found[0][0], found[1][0]), (fmt, window, count, y.fmt)


def test_sides_differ_and_memory_may_lie_otherwise() -> None:
    x = torch.randint(-128, 128, (2, 8, 9, 4), dtype=torch.int8).permute(0, 3, 1, 2)
    settings = ([3, 2], [2, 1], [1, 0], [1, 2], False)
    expected = torch.max_pool2d(x.float(), *settings)
    assert torch.equal(max_pool(x, 2, settings).float(), expected)
