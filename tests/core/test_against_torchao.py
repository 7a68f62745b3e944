# SPDX-License-Identifier: BSD-3-Clause
"""The bytes and codes of torchao 0.18.0's MX and NVFP4, with each difference excluded by name."""

import math

import pytest
import torch
from torch import Tensor
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from blockscale.core import reference as R
from blockscale.core.arithmetic.precision import mantissa
from blockscale.core.pack import pack
from blockscale.core.parse import parse

DTYPES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e3m2": DTYPE_FP6_E3M2,
    "e2m3": DTYPE_FP6_E2M3,
    "e2m1": torch.float4_e2m1fn_x2,
}
RULES = ("floor", "rceil", "ceil", "even")
ROWS, COLUMNS = 256, 128


def finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 1.0)


def log_uniform() -> Tensor:
    return torch.randn(ROWS, COLUMNS).sign() * (torch.rand(ROWS, COLUMNS) * 40 - 20).exp2()


def bit_patterns() -> Tensor:
    bits = torch.randint(0, 2**31, (ROWS, COLUMNS), dtype=torch.int32)
    return finite(bits.view(torch.float32)) * torch.randn(ROWS, COLUMNS).sign()


def beside_thresholds() -> Tensor:
    """Blocks whose amax lies 64 float32 steps around each value of 4 mantissa bits."""
    centres = (torch.arange(16.0) / 16 + 1).view(torch.int32)[:, None]
    centres = centres + torch.arange(-64, 64, dtype=torch.int32)
    amax = centres.clamp(0x3F800000, 0x3FFFFFFF).view(torch.float32).reshape(-1, 1)
    return (amax * torch.linspace(-1, 1, 32)).repeat(1, 2)


DATA = {
    "normal": lambda: torch.randn(ROWS, COLUMNS),
    "bfloat16": lambda: torch.randn(ROWS, COLUMNS).bfloat16(),
    "log_uniform": log_uniform,
    "tiny": lambda: torch.randn(ROWS, COLUMNS) * 1e-38,
    "subnormal": lambda: torch.randn(ROWS, COLUMNS) * 1e-42,
    "huge": lambda: finite(torch.randn(ROWS, COLUMNS) * 1e38),
    "bit_patterns": bit_patterns,
    "beside_thresholds": beside_thresholds,
    "zero": lambda: torch.zeros(4, 64),
    "halves": lambda: torch.randint(-32, 33, (ROWS, COLUMNS)) / 2,
}


def torchao_mx(x: Tensor, element: str, rule: str) -> tuple[Tensor, Tensor]:
    scale, data = to_mx(x, DTYPES[element], 32, ScaleCalculationMode[rule.upper()])
    return scale.view(torch.uint8), data.view(torch.uint8)


def in_blocks(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.reshape(*scale.shape, -1)


def log2_is_wrong(x: Tensor, top: float) -> Tensor:
    """0.18.0's rceil takes ceil(log2(amax / top)), and log2 drops what follows a power of two.

    Float32 near 127 has steps of 2^-17, so up to 2^-18 / log2(e) = 23 steps of amax are lost.
    """
    amax = x.float().abs().reshape(x.shape[0], -1, 32).amax(-1)
    quotient = amax / top
    above = mantissa(torch.where(quotient > 0, quotient, 1.0))
    return (above > 0) & (above < 32)


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("data", DATA)
def test_mx(data: str, element: str, rule: str) -> None:
    x = DATA[data]().contiguous()
    fmt = parse(f"{element}:group32:e8m0/{rule}")
    scale, codes = torchao_mx(x, element, rule)
    qparams = R.choose_qparams(x, fmt)
    ours = R.quantize(x, qparams, fmt)
    compared = torch.ones_like(scale, dtype=torch.bool)
    if rule == "rceil":
        compared = ~log2_is_wrong(x, fmt.element.max)
        assert compared.float().mean() > 0.9
    assert torch.equal(qparams.scale[compared], scale[compared])
    # Under byte 0, which is 2^-127, it divides by 2^-126 (rceil: by 1) to spare a Triton kernel.
    compared &= qparams.scale > 0
    ours = pack(ours, fmt.element) if element == "e2m1" else ours
    ours, theirs = in_blocks(ours, scale), in_blocks(codes, scale)
    assert torch.equal(ours[compared], theirs[compared])
    if data not in ("tiny", "subnormal", "zero"):
        assert compared.float().mean() > 0.9


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("element", DTYPES)
def test_nan_poisons_its_block(element: str, rule: str) -> None:
    x = torch.randn(4, 64)
    x[1, 40] = math.nan
    fmt = parse(f"{element}:group32:e8m0/{rule}")
    scale, codes = torchao_mx(x, element, rule)
    qparams = R.choose_qparams(x, fmt)
    assert torch.equal(qparams.scale, scale)
    assert (scale == 255).nonzero().tolist() == [[1, 1]]
    values = R.fake_quantize(x, qparams, fmt)
    poisoned = torch.zeros(4, 64, dtype=torch.bool)
    poisoned[1, 32:] = True
    assert torch.equal(values.isnan(), poisoned)
    ours = R.quantize(x, qparams, fmt)
    ours = pack(ours, fmt.element) if element == "e2m1" else ours
    sound = scale < 255
    assert torch.equal(in_blocks(ours, scale)[sound], in_blocks(codes, scale)[sound])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinity_poisons_too(value: float, rule: str) -> None:
    # OCP MX 1.0, 6.3; torchao 0.18.0 saturates an infinity, torchao 36027d8 poisons as here
    x = torch.zeros(2, 64)
    x[0, 5] = value
    fmt = parse(f"e2m1:group32:e8m0/{rule}")
    qparams = R.choose_qparams(x, fmt)
    assert qparams.scale.tolist() == [[255, 0], [0, 0]]
    values = R.fake_quantize(x, qparams, fmt)
    assert values[0, :32].isnan().all()
    assert not values[0, 32:].any()
    assert not values[1].any()


def all_sizes() -> Tensor:
    """Rows from 1e-5 to 1, and of zeros: block scales reach the floor of e4m3's normal numbers."""
    return (
        torch.randn(ROWS, COLUMNS)
        * torch.logspace(-5, 0, ROWS)[:, None]
        * (torch.arange(ROWS) % 9 > 0)[:, None]
    )


def ties() -> Tensor:
    """Blocks of e2m1's midpoints times the block's own step, with 6 steps as the largest."""
    x = torch.rand(ROWS, 8, 1).expand(ROWS, 8, 16).clone()
    fmt = parse("nvfp4")
    step = R.step_of(R.choose_qparams(x.reshape(ROWS, -1), fmt), fmt)[..., None]
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]) * step
    x[..., 1:8], x[..., 8:15] = midpoints, -midpoints
    return x.reshape(ROWS, -1)


NVFP4 = {key: DATA[key] for key in ("normal", "bfloat16", "log_uniform", "halves")}
NVFP4 |= {"all_sizes": all_sizes, "ties": ties}


@pytest.mark.parametrize("data", NVFP4)
def test_nvfp4(data: str) -> None:
    x = NVFP4[data]().contiguous()
    fmt = parse("e2m1:group16:e4m3:recip")
    qparams = R.choose_qparams(x, fmt)
    outer = per_tensor_amax_to_scale(x.float().abs().max())
    assert qparams.outer.item() == outer.item()
    scale, codes = nvfp4_quantize(x, 16, outer)
    assert torch.equal(qparams.scale, scale.view(torch.uint8))
    assert torch.equal(pack(R.quantize(x, qparams, fmt), fmt.element), codes.view(torch.uint8))
    divided = R.choose_qparams(x, parse("nvfp4"))  # recip is about codes alone
    assert torch.equal(divided.scale, qparams.scale)
    assert torch.equal(divided.outer, qparams.outer)


def test_nvfp4_divides_unless_told() -> None:
    """On ties the two conventions do differ, so the test above compares with the right one."""
    x, fmt = ties(), parse("nvfp4")
    qparams = R.choose_qparams(x, fmt)
    recip = R.quantize(x, qparams, parse("e2m1:group16:e4m3:recip"))
    assert 0.01 < (R.quantize(x, qparams, fmt) != recip).float().mean() < 0.5


@pytest.mark.parametrize("recip", ["", ":recip"])
@pytest.mark.parametrize("element", ["e2m1", "e4m3"])  # only e4m3 can show a NaN
def test_nvfp4_of_zeros(element: str, recip: str) -> None:
    # torchao 0.18.0 multiplies 0 by 1 / (2^-126 * 2^-6), which is infinity, and writes 0xBB
    x, fmt = torch.zeros(2, 32), parse(f"{element}:group16:e4m3{recip}")
    qparams = R.choose_qparams(x, fmt)
    assert qparams.outer.tolist() == [[2.0**-126]]
    assert qparams.scale.tolist() == [[0x08, 0x08]] * 2
    assert not R.quantize(x, qparams, fmt).any()
    assert torch.equal(R.fake_quantize(x, qparams, fmt), x)


def test_nvfp4_nan() -> None:
    x = torch.randn(2, 32)
    x[0, 3] = math.nan
    fmt = parse("e2m1:group16:e4m3:recip")
    qparams = R.choose_qparams(x, fmt)
    assert qparams.outer.item() == per_tensor_amax_to_scale(x.abs().nan_to_num().max()).item()
    scale, codes = nvfp4_quantize(x, 16, qparams.outer.reshape(()))
    assert torch.equal(qparams.scale, scale.view(torch.uint8))
    assert (qparams.scale == 0x7F).tolist() == [[True, False], [False, False]]
    ours = pack(R.quantize(x, qparams, fmt), fmt.element)
    assert torch.equal(ours[0, 8:], codes.view(torch.uint8)[0, 8:])
    assert R.fake_quantize(x, qparams, fmt).isnan().sum() == 16


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_nvfp4_infinity_poisons_and_stays_out_of_the_outer_scale(value: float) -> None:
    x = torch.full((1, 32), 3.0)
    x[0, 3] = value
    qparams = R.choose_qparams(x, parse("nvfp4"))
    assert qparams.scale.tolist() == [[0x7F, 0x7E]]  # NaN, 448
    assert qparams.outer.item() == torch.tensor(3.0).div(2688).item()
