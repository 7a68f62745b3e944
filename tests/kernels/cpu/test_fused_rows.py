# SPDX-License-Identifier: BSD-3-Clause
"""What the fused kernels take for rows with scales."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu import fused_rows, fused_tables
from blockscale.kernels.cpu.fused_rows import (
    FusedResult,
    readable,
    row_block,
    rows_of,
    shape_of,
    writable,
)
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM
from blockscale.ops.fused.values import quantized
from tests.kernels.cpu.equal import settings
from tests.kernels.cpu.fused.given import UINT8, coded, fixed, rough
from tests.support.same import same


@pytest.mark.parametrize(
    ("fmt", "shape", "block"),
    [
        ("int8:tensor:fp32", (3, 8), 0),
        ("int8:token:fp32", (3, 8), 8),
        ("int8:token:fp32", (2, 3, 8), 8),
        ("int8:token:fp32", (1, 8), 8),
        ("int8:group4:fp32", (3, 8), 4),
        ("int8:group4:fp32", (3, 10), 4),
        ("int8:group4:fp32", (5, 3, 4), 4),
        ("mxfp8", (3, 64), 32),
        ("int8:channel0:fp32", (3, 8), 8),
        ("int8:channel1:fp32", (3, 8), -1),
        ("int8:tensor:fp32", (1, 1, 8), 8),
        ("int8:channel0:fp32", (3, 4, 8), -1),
        ("int8:tile2x8:fp32", (4, 8), -1),
        ("nvfp4", (3, 32), -1),
        ("int4:token:fp32", (3, 7), -1),
        ("int4:token:fp32", (3, 8), 8),
        ("int8:tensor:fp32", (0, 8), -1),
        ("int8:tensor:fp32", (), -1),
    ],
)
def test_blocks_of_rows(fmt: str, shape: tuple[int, ...], block: int) -> None:
    assert row_block(fmt, shape) == block


def test_what_is_read_and_written() -> None:
    x = torch.randn(4, 8)
    assert readable(Value(x)) and not readable(Value(x.double())) and not readable(Value(x.half()))
    assert readable(coded(x, "int8:token:fp32")) and not readable(coded(x, "nvfp4"))
    assert writable(Quantizer(None, None, None, ""), (4, 8))
    assert writable(fixed(UINT8, 2), (4, 8))
    assert not writable(Quantizer(None, None, None, UINT8), (4, 8))  # the scale needs all rows
    assert writable(Quantizer(None, None, None, "int8:token:fp32"), (4, 8))
    assert not writable(fixed("int8:tensor:fp32:stochastic", 2), (4, 8))


def test_operands_that_misfit() -> None:
    value = coded(torch.randn(4, 8), "int8:token:fp32")
    assert value.scale is not None
    with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(4, 1\)"):
        rows_of(value._replace(scale=value.scale[:2]), [])
    with pytest.raises(ValueError, match=r"packed as torch\.int8"):
        rows_of(value._replace(data=value.data.to(torch.int32)), [])


def test_one_number_of_any_rank() -> None:
    value, y = coded(torch.randn(4, 8), UINT8), fixed(UINT8, 4)
    assert value.scale is not None and value.zero_point is not None
    one = value._replace(scale=value.scale.reshape(1), zero_point=value.zero_point.reshape(1))
    with bs.use("cpu"):
        expected = bs.ops.fused.FUSED["add"](value, value, y=fixed(UINT8, 2))
        found = bs.ops.fused.FUSED["add"](one, one, y=y)
    assert torch.equal(found[0], expected[0])


def test_results() -> None:
    floats = FusedResult(Quantizer(None, None, None, ""), (4, 8))
    assert floats.codes is None and floats.tensors[0].shape == (4, 8) and floats.floats
    codes = FusedResult(fixed(UINT8, 2), (4, 8))
    assert codes.has_scale and codes.floats == 0 and codes.tensors[0].dtype == torch.uint8
    chosen = FusedResult(Quantizer(None, None, None, "int8:token:fp32"), (4, 8))
    assert [part.shape for part in chosen.tensors] == [(4, 8), (4, 1)] and not chosen.has_scale


def test_symbolic_sizes_are_those_that_were_traced() -> None:
    """A graph asks with fake tensors, and no guard may come of it."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Model(), (torch.randn(5, 8),), dynamic_shapes=(batch,))
    (node,) = [each for each in program.graph.nodes if each.op == "placeholder"]
    fake = node.meta["val"]
    assert not isinstance(fake.shape[0], int)
    value, y = Value(fake), Quantizer(None, None, None, "int8:token:fp32")
    codes = Value(
        fake.to(torch.uint8), fake.new_ones(1, 1), fake.new_zeros(1, 1).int(), None, UINT8, 8
    )
    symbols = fake.shape[0].node.shape_env
    before = len(symbols.guards)
    assert shape_of(value) == shape_of(codes) == (5, 8)
    plain = (torch.float32, y)
    assert fused_rows._supports_layer((), (value, [8], None, None, 1e-5, *plain))
    assert fused_tables.supports_two((parse(UINT8),), (codes, value, *plain))
    assert fused_tables.supports((parse(UINT8),), (codes, torch.float32, fixed(UINT8, 2)))
    heads = Value(fake.new_empty(fake.shape[0], 2, 3, 16))
    attended = (heads, heads, heads, fake.new_ones(3, 3), False, None, False)
    assert fused_rows.supports((parse(y.fmt),), (*attended, *plain))
    assert len(symbols.guards) == before


SHAPES = ((1, 1), (3, 7), (2, 5, 64), (2, 65), (4, 384), (1, 5003), (70, 300))
RESULTS = (
    UINT8, "int8:tensor:fp32", "e4m3:tensor:fp32", "int8:token:fp32", "uint8:token:fp32:asym",
    "uint8:token:fp32:asym(fp16)",
    "e4m3:group16:e8m0/floor", "int4:group8:fp16", "int8:channel0:fp32", "uint4:token:fp16:offset",
)  # fmt: skip


def quantizers(shape: tuple[int, ...]) -> Iterator[Quantizer]:
    """Static and dynamic ones."""
    for fmt in RESULTS:
        if ":tensor" in fmt:
            yield fixed(fmt, len(shape))
        else:
            yield Quantizer(None, None, None, fmt)


def vectors(size: int) -> tuple[Tensor, Tensor]:
    """A weight and a bias."""
    drawn = torch.Generator().manual_seed(size)
    return torch.rand(size, generator=drawn) + 0.5, torch.randn(size, generator=drawn)


def residual(a: Value, b: Value, keep: str, y: Quantizer = UNQUANTIZED) -> list[Tensor]:
    size = a.size or a.data.shape[-1]
    arguments = [size], *vectors(size), 1e-5, keep, torch.float32, y
    found: list[Tensor] = RESIDUAL_LAYER_NORM(a, b, *arguments)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_norms_are_near(isa: str, shape: tuple[int, ...]) -> None:
    """In float64, by the definition; the bound is that of docs/numerics.md, section 7."""
    x = rough(*shape)
    weight, bias = vectors(shape[-1])
    wide, eps = x.double(), 1e-5
    mean = wide.mean(-1, keepdim=True)
    for centered, with_weight, with_bias in (
        (True, True, True), (True, True, False), (True, False, True), (True, False, False),
        (False, True, False), (False, False, False),
    ):  # fmt: skip
        away = wide - mean if centered else wide
        factor = 1 / (away.square().mean(-1, keepdim=True) + eps).sqrt()
        w = weight.double() if with_weight else torch.ones(shape[-1]).double()
        b = bias.double() if with_bias else torch.zeros(shape[-1]).double()
        more = {"weight": weight if with_weight else None, "eps": eps}
        more |= {"bias": bias if with_bias else None} if centered else {}
        op = FUSED["layer_norm" if centered else "rms_norm"]
        with bs.use("cpu"):
            (found,) = op(Value(x), normalized_shape=[shape[-1]], **more)
        size = wide.abs() + mean.abs() + wide.abs().amax(-1, keepdim=True) * 2**-3
        bound = op.ulps * 2.0**-24 * (size * factor * w.abs() + b.abs())
        assert ((found.double() - (away * factor * w + b)).abs() <= bound).all()


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [s for s in SHAPES if math.prod(s) > 1])
def test_codes_are_those_of_the_floats(isa: str, shape: tuple[int, ...]) -> None:
    a, b = Value(rough(*shape)), Value(torch.randn(shape))
    served = [y for y in quantizers(shape) if writable(y, shape)]
    assert len(served) >= 5
    for y in served:
        for keep in ("norm", "sum"):
            with bs.use("cpu"):
                floats, *found = residual(a, b, keep, y)
                (norm,) = residual(a, b, keep)[1:]
            assert same(floats, norm if keep == "norm" else a.data + b.data)
            with bs.use("reference"):
                expected = quantized(norm, y)
            assert len(found) == len(expected), y.fmt
            assert all(same(p, q) for p, q in zip(found, expected, strict=True)), y.fmt


def test_every_instruction_set_has_the_same_bits() -> None:
    """And every number of threads."""
    a, b = Value(rough(60, 389)), Value(torch.randn(60, 389))
    y = Quantizer(None, None, None, "uint8:token:fp32:asym")
    with settings("baseline", 1):
        expected = residual(a, b, "norm", y)
    for isa in bs.kernels.cpu._native.isas():
        for count in (1, 3):
            with settings(isa, count):
                found = residual(a, b, "norm", y)
            assert all(same(p, q) for p, q in zip(found, expected, strict=True)), (isa, count)


READ = ("int8:token:fp32", UINT8, "e4m3:group16:e8m0/floor", "int4:group8:fp16")


@pytest.mark.parametrize("fmt", [*READ, "int16:tensor:fp32"])
def test_codes_are_read(isa: str, fmt: str) -> None:
    """As the floats that they stand for; for each side of the sum."""
    a, b = coded(rough(2, 9, 48), fmt), coded(torch.randn(2, 9, 48), fmt)
    with bs.use("reference"):
        plain = [Value(P.dequantize(each.operand, torch.float32)) for each in (a, b)]
    y = fixed(UINT8, 3)
    with bs.use("cpu"):
        expected = residual(*plain, "sum", y)
        for left, right in ((a, b), (plain[0], b), (a, plain[1])):
            found = residual(left, right, "sum", y)
            assert all(same(p, q) for p, q in zip(found, expected, strict=True))
        (one,) = FUSED["layer_norm"](a, normalized_shape=[48], eps=1e-5)
        (same_one,) = FUSED["layer_norm"](plain[0], normalized_shape=[48], eps=1e-5)
    assert same(one, same_one)


def test_ops_of_one_result_give_the_same() -> None:
    a, b = Value(rough(6, 40)), Value(torch.randn(6, 40))
    weight, bias = vectors(40)
    y = Quantizer(None, None, None, "int8:token:fp32")
    with bs.use("cpu"):
        _, *expected = residual(a, b, "norm", y)
        told = {"normalized_shape": [40], "weight": weight, "bias": bias, "eps": 1e-5}
        found = FUSED["add_layer_norm"](a, b, y=y, **told)
        of_sum = FUSED["layer_norm"](Value(a.data + b.data), y=y, **told)
        _, rms = RESIDUAL_RMS_NORM(a, b, [40], weight, None, "sum", torch.float32, UNQUANTIZED)
        total = Value(a.data + b.data)
        (plain_rms,) = FUSED["rms_norm"](total, normalized_shape=[40], weight=weight)
    assert all(same(p, q) for p, q in zip(found, expected, strict=True))
    assert all(same(p, q) for p, q in zip(of_sum, expected, strict=True))
    assert same(rms, plain_rms)


def test_rows_that_are_odd(isa: str) -> None:
    """As torch: NaN and infinities spoil their own row, rows of large numbers have a mean."""
    x = torch.randn(8, 70)
    x[1, 69], x[2, 3], x[3, 0], x[3, 1] = math.nan, math.inf, math.inf, -math.inf
    x[4] = 5.0
    x[5] = 3e38
    x[6] = torch.linspace(2.0e38, 3.3e38, 70)
    x[7] *= 1e-41
    with bs.use("cpu"):
        floats, codes = residual(Value(x), Value(torch.zeros(8, 70)), "norm", fixed(UINT8, 2))
    expected = torch.nn.functional.layer_norm(x, [70], *vectors(70), 1e-5)
    assert torch.equal(floats.isnan(), expected.isnan())
    assert floats[1:4].isnan().all() and not floats[[0, 4, 5, 6, 7]].isnan().any()
    assert torch.allclose(floats[[0, 4, 5, 6, 7]], expected[[0, 4, 5, 6, 7]], atol=1e-5)
    assert (codes[1:4] == 7).all()  # NaN becomes the code of zero


def test_tensors_that_lie_apart() -> None:
    a, b = torch.randn(40, 6).t(), torch.randn(6, 80)[:, ::2]
    with bs.use("cpu"):
        found = residual(Value(a), Value(b), "norm", fixed(UINT8, 2))
        expected = residual(Value(a.contiguous()), Value(b.contiguous()), "norm", fixed(UINT8, 2))
    assert all(same(p, q) for p, q in zip(found, expected, strict=True))


def test_results_share_no_memory() -> None:
    a = Value(torch.randn(2, 8))
    for backend in ("cpu", "reference"):
        with bs.use(backend):
            first, second = residual(a, a, "norm")
        assert same(first, second) and first.data_ptr() != second.data_ptr()


def test_what_is_composed() -> None:
    """Broadcasting, several dimensions, other dtypes, chances, one scale that is not there yet."""
    x, y = Value(torch.randn(2, 3, 8)), UNQUANTIZED
    plain = ([8], None, None, 1e-5, "norm", torch.float32)
    assert fused_rows._supports_residual((), (x, x, *plain, y))
    drawn = fixed("int8:tensor:fp32:stochastic", 3)
    dynamic = Quantizer(None, None, None, "int8:tensor:fp32")
    columns = Quantizer(None, None, None, "int8:channel2:fp32")
    two_levels = Quantizer(None, None, None, "nvfp4")
    refused = [
        (x, Value(torch.randn(3, 8)), *plain, y),
        (x, x, [3, 8], *plain[1:], y),
        (x, x, *plain[:5], torch.bfloat16, y),
        (x, Value(x.data.double()), *plain, y),
        (x, x, [8], torch.ones(8).double(), *plain[2:], y),
        *((x, x, *plain, each) for each in (drawn, dynamic, columns, two_levels)),
        (Value(torch.empty(0, 8)), Value(torch.empty(0, 8)), *plain, y),
    ]
    assert not any(fused_rows._supports_residual((), each) for each in refused)
    floats, codes, scale = residual(x, x, "norm", dynamic)
    assert codes.shape == (2, 3, 8) and scale.numel() == 1 and floats.shape == codes.shape
    assert residual(Value(torch.empty(0, 8)), Value(torch.empty(0, 8)), "sum")[0].shape == (0, 8)


def test_bad_input() -> None:
    x = Value(torch.randn(2, 8))
    with pytest.raises(ValueError, match="keep must be 'norm' or 'sum', got 'both'"):
        residual(x, x, "both")
    bad = fixed(UINT8, 2)._replace(scale=torch.full((3, 1), 0.1))
    with bs.use("cpu"), pytest.raises(ValueError, match=r"shape \(1, 1\).*found.*\(3, 1\)"):
        residual(x, x, "norm", bad)


SIZES = (  # batch, heads, rows, keys, depth, width
    (2, 3, 64, 64, 32, 32), (1, 2, 7, 9, 5, 16), (2, 2, 100, 130, 64, 48), (1, 1, 1, 300, 128, 128),
    (1, 1, 65, 1, 1, 16),
)  # fmt: skip


def heads(batch: int, count: int, rows: int, width: int, seed: int = 0) -> Tensor:
    """[batch, heads, rows, width] as models have it: rows of all heads side by side."""
    x = torch.randn(batch, rows, count, width, generator=torch.Generator().manual_seed(seed))
    return x.transpose(1, 2)


def exact(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """In float64 by the definition, and what an error of one unit may be."""
    q, k, v = q.double(), k.double(), v.double()
    added = 0 if mask is None else mask.double()
    weights = torch.softmax(q @ k.mT * scale + added, -1)
    scores = (q.abs() @ k.abs().mT * scale).amax(-1, keepdim=True)
    return weights @ v, (1 + scores) * (weights @ v.abs())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_exact_attention_is_near(isa: str, sizes: tuple[int, ...]) -> None:
    batch, count, rows, keys, depth, width = sizes
    q = heads(batch, count, rows, depth, 1) * 3
    k, v = heads(batch, count, keys, depth, 2) * 3, heads(batch, count, keys, width, 3)
    some = torch.rand(batch, 1, 1, keys) < 0.7
    some[..., 0] = True
    below = torch.arange(keys) <= torch.arange(rows)[:, None]
    masks: list[dict[str, Any]] = [
        {}, {"scale": 0.3}, {"mask": torch.randn(rows, keys)}, {"mask": some}, {"causal": True},
        {"mask": torch.randn(batch, count, rows, keys)},
    ]  # fmt: skip
    for told in masks:
        mask = below if told.get("causal") else told.get("mask")
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(()).where(mask, -math.inf)
        expected, unit = exact(q, k, v, mask, told.get("scale", depth**-0.5))
        with bs.use("cpu"):
            (found,) = FUSED["sdpa"](Value(q), Value(k), Value(v), **told)
        assert found.is_contiguous()
        error = (found.double() - expected).abs()
        assert (error <= FUSED["sdpa"].ulps * 2.0**-24 * unit).all(), told


def test_codes_are_read_and_written(isa: str) -> None:
    """Codes stand for their floats; the result's are those of the float result."""
    x = [heads(2, 4, 50, 32, seed).contiguous() for seed in range(3)]
    formats = ("int8:tensor:fp32", "e4m3:token:fp32", "nvfp4")
    values = [coded(each, fmt) for each, fmt in zip(x, formats, strict=True)]
    plain = [Value(P.dequantize(each.operand, torch.float32)) for each in values]
    with bs.use("cpu"):
        (expected,) = FUSED["sdpa"](*plain)
        assert same(FUSED["sdpa"](*values)[0], expected)
        for y in (fixed(UINT8, 4), Quantizer(None, None, None, "int8:token:fp32")):
            found = FUSED["sdpa"](values[0], plain[1], values[2], y=y)
            with bs.use("reference"):
                codes = quantized(expected, y)
            assert all(same(p, q) for p, q in zip(found, codes, strict=True))


def test_heads_that_are_shared() -> None:
    q, k, v = heads(2, 6, 20, 16, 1), heads(2, 2, 30, 16, 2), heads(2, 2, 30, 16, 3)
    with bs.use("cpu"):
        (found,) = FUSED["sdpa"](Value(q), Value(k), Value(v), enable_gqa=True)
        repeated = [Value(each.repeat_interleave(3, 1)) for each in (k, v)]
        (expected,) = FUSED["sdpa"](Value(q), *repeated)
    assert same(found, expected)


def test_without_a_batch() -> None:
    x = [heads(1, 3, 20, 16, seed) for seed in range(3)]
    with bs.use("cpu"):
        (expected,) = FUSED["sdpa"](*map(Value, x))
        (found,) = FUSED["sdpa"](*(Value(each[0]) for each in x))
    assert same(found, expected[0])


def test_threads() -> None:
    x = [Value(heads(4, 4, 100, 32, seed)) for seed in range(3)]
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        with bs.use("cpu"):
            found.append(FUSED["sdpa"](*x, y=fixed(UINT8, 4))[0])
    assert torch.equal(*found)


def test_numbers_that_are_odd(isa: str) -> None:
    """NaN and infinities go where torch has them; rows that see nothing are 0."""
    q, k, v = (heads(1, 2, 40, 16, seed) for seed in range(3))
    unseen = torch.zeros(40, 40)
    unseen[3], unseen[5, 1:], unseen[7] = -math.inf, -math.inf, torch.finfo(torch.float32).min
    bad = [q.clone(), k.clone(), v.clone()]
    bad[0][0, 0, 2] = math.nan
    bad[1][0, 1, 4, 1] = math.nan
    bad[2][0, 0, 6, 3] = math.inf
    large = [q * 1e18, k * 1e18, v]
    for operands, mask in (([q, k, v], unseen), (bad, None), (bad, unseen), (large, None)):
        expected = F.scaled_dot_product_attention(*operands, mask)
        with bs.use("cpu"):
            (found,) = FUSED["sdpa"](*map(Value, operands), mask=mask)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, atol=1e-4, equal_nan=True)
    assert mask is None


def test_sdpa_what_is_composed() -> None:
    q, k, v = (Value(heads(1, 2, 8, 16, seed)) for seed in range(3))

    def supports(*operands: Value, dtype: torch.dtype = torch.float32, **told: Any) -> bool:
        y = told.pop("y", UNQUANTIZED)
        own = FUSED["sdpa"]._own(operands, told, dtype, y)
        formats = tuple(parse(each.fmt) for each in (*operands, y) if each.fmt)
        return fused_rows.supports(formats, own)

    assert supports(q, k, v)
    mask = torch.zeros(8, 8)
    narrow = Value(v.data[..., :15])
    assert not supports(q, k, narrow)  # no whole vectors
    assert not supports(q, k, v, mask=mask, causal=True)  # torch raises
    assert not supports(q, k, v, mask=mask[:, :3])
    assert not supports(q, Value(k.data[:, :1]), Value(v.data[:, :1]))
    assert not supports(q, k, v, dtype=torch.bfloat16)
    assert not supports(q, k, Value(v.data.double()))
    assert not supports(*(Value(each.data[0, 0]) for each in (q, k, v)))
    assert not supports(q, k, v, y=Quantizer(None, None, None, "int8:tensor:fp32"))
    assert not supports(q, Value(k.data[:, :, :0]), Value(v.data[:, :, :0]))
    (found,) = FUSED["sdpa"](q, k, narrow)
    expected = F.scaled_dot_product_attention(q.data, k.data, narrow.data)
    assert same(found, expected.contiguous())
