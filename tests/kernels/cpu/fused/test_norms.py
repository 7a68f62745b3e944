# SPDX-License-Identifier: BSD-3-Clause
"""Norms lie within the op's bound of exact ones; their codes are those of the floats they give."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels.cpu.fused import norms
from blockscale.kernels.cpu.fused.rows import writable
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM
from blockscale.ops.fused.values import quantized
from tests.kernels.cpu.equal import settings
from tests.kernels.cpu.fused.given import UINT8, coded, fixed, rough
from tests.support.same import same

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
    assert norms._supports_residual((), (x, x, *plain, y))
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
    assert not any(norms._supports_residual((), each) for each in refused)
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
