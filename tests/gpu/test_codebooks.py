# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks and offsets on a GPU: the reference's bits, and linear layers within the tolerance.

Needs CUDA: `pytest -m gpu tests/gpu`. In Triton's interpreter: tests/kernels/cuda.
"""

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.matmul import composed
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.cuda_device_inputs import midpoints
from tests.support.cuda_equal import DTYPES, wrong
from tests.support.cuda_formats import CODEBOOKS, FLOAT_ZEROS, OFFSETS
from tests.support.cuda_matmul_exact import ulps_of
from tests.support.gpu_cuda_reference import hard_inputs
from tests.support.gpu_linear import ROUNDS
from tests.support.gpu_primitives import graded
from tests.support.same import same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
FORMATS = [*CODEBOOKS, *OFFSETS, *FLOAT_ZEROS]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_hard_inputs(fmt: str, dtype: torch.dtype) -> None:
    assert wrong(hard_inputs(dtype), fmt) == []


@pytest.mark.parametrize("fmt", FORMATS)
def test_pairs(fmt: str) -> None:
    """Numbers of 16 bits, two in a register, as in most programs; then with some not finite."""
    for dtype in DTYPES[1:]:
        x = graded(dtype)
        assert wrong(x, fmt) == [], dtype
        x[5, 7], x[100, 3] = torch.nan, -torch.inf
        assert wrong(x, fmt) == [], dtype


@pytest.mark.parametrize("fmt", FORMATS)
def test_many_ordinary_blocks(fmt: str) -> None:
    for dtype in DTYPES:
        x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(3)).to(dtype)
        assert wrong(x, fmt) == [], dtype


@pytest.mark.parametrize("fmt", CODEBOOKS)
def test_every_midpoint(fmt: str) -> None:
    plain = f"{fmt.split(':')[0]}:tensor:fp32"
    for scale in (1.0, 3.0, -2.0, 0.0, -0.0, 2.0**-149, 3e38):
        given = QParams(torch.tensor([scale]))
        assert wrong(midpoints(plain), plain, given=given) == []


@pytest.mark.parametrize("fmt", [*OFFSETS, *FLOAT_ZEROS])
def test_blocks_of_one_number(fmt: str) -> None:
    """Their range is 0, and their offset all that is left of them."""
    for dtype in DTYPES:
        x = torch.full((4, 256), 1.2345678).to(dtype)
        x[1] = -3.7e4
        x[2, ::3] += 1e-3
        assert wrong(x, fmt) == [], dtype


def weight_of(fmt: str, n: int, k: int) -> tuple:
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(0)).cuda()
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    stored = operand(codes, P.from_list(rest, parse(fmt)), fmt, k)
    return stored, P.dequantize.reference(stored, torch.float32).double()


def excess(y: Tensor, x: Tensor, dense: Tensor, bias: Tensor, fmt: str) -> float:
    """How many times the tolerance y is off."""
    exact, size = x.double() @ dense.T + bias, x.double().abs() @ dense.abs().T + bias.abs()
    ulps = ulps_of(x, fmt)
    if x.dtype is torch.bfloat16 and x.shape[0] > 32:
        ulps = max(ulps, x.shape[1] / 8)  # docs/numerics.md, section 7

    bound = ulps * 2.0**-24 * size
    bound += ROUNDS[x.dtype] * (exact.abs() + bound) + 1e-30
    return ((y.double() - exact).abs() / bound).max().item()


@pytest.mark.parametrize("k", [576, 4096])
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if "stochastic" not in fmt])
def test_linear(fmt: str, k: int) -> None:
    n, fmt = 200, str(parse(fmt))
    stored, dense = weight_of(fmt, n, k)
    bias = torch.randn(n, device="cuda")
    for dtype in DTYPES:
        for m in (1, 7, 33, 150, 1100):
            x = torch.randn(m, k, device="cuda").to(dtype)
            for _ in range(3):  # the third is a recording
                y = linear(x, stored, bias, Quantizer(None, None, None, "", None))
            assert excess(y, x, dense, bias.double(), fmt) <= 1, (dtype, m)


@pytest.mark.parametrize("fmt", ["nf4:group64:fp32", "fp4:group64:fp16", "nf4:channel0:fp32"])
def test_long_sums(fmt: str) -> None:
    """All products positive: what is lost adds up."""
    n, k = 128, 16384
    stored, dense = weight_of(fmt, n, k)
    for m, dtype in ((3, torch.float32), (16, torch.bfloat16), (600, torch.bfloat16)):
        x = (torch.rand(m, k, device="cuda") * dense[3].sign()).to(dtype)
        y = linear(x, stored, None, Quantizer(None, None, None, "", None))
        assert excess(y, x, dense, torch.zeros(n, device="cuda").double(), fmt) <= 1, (m, dtype)


def test_tables_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact products of tables keep to the op's own bound, those of one bfloat16 to half a unit."""
    fmt, n, k = str(parse("nf4:group64:fp32")), 200, 4096
    stored, dense = weight_of(fmt, n, k)
    for m in (1, 33, 150, 1100):
        x = torch.randn(m, k, device="cuda").bfloat16()
        exact, size = x.double() @ dense.T, x.double().abs() @ dense.abs().T
        rounds = 2.0**-8 * exact.abs()
        lost = {}
        for how in ("exact", ""):
            monkeypatch.setenv("BLOCKSCALE_WEIGHT_PRODUCTS", how)
            for _ in range(3):  # the third is a recording
                y = linear(x, stored, None, Quantizer(None, None, None, "", None))
            lost[how] = ((y.double() - exact).abs() - rounds).div(size).max().item() * 2**24
        hidden = ulps_of(x, fmt)
        assert lost["exact"] <= max(64, k / 8) and lost[""] <= hidden, (m, lost)


@pytest.mark.parametrize(
    "fmt", ["int4:group32:fp32", "uint4:group64:fp32:asym", "nf4:group64:e4m3"]
)
def test_rounded_values(fmt: str) -> None:
    """Many rows: the product of the weight rounded to bfloat16, of rows at a time as of all."""
    fmt, n, k = str(parse(fmt)), 200, 576
    stored, dense = weight_of(fmt, n, k)
    bias = torch.randn(n, device="cuda")
    least = composed.least_rows(fmt, k)
    for m in {max(least - 1, 1), least, 1100}:
        x = torch.randn(m, k, device="cuda").bfloat16()
        y = linear(x, stored, bias, Quantizer(None, None, None, "", None))
        assert excess(y, x, dense, bias.double(), fmt) <= 1, m
        exact = x.double() @ dense.T + bias.double()
        near = x.double() @ dense.bfloat16().double().T + bias.double()
        if m >= least:
            assert (y.double() - near).norm() < (y.double() - exact).norm()


def test_recordings_take_further_parts() -> None:
    fmt = "uint4:group32:fp16:offset"
    x = torch.randn(64, 256, device="cuda")
    by = quantizer(P.from_list(P.choose_qparams(x, fmt), parse(fmt)), fmt)
    first = P.quantize(x, by)
    for _ in range(4):
        assert same(P.quantize(x, by), first)
    other = quantizer(P.from_list(P.choose_qparams(3 * x, fmt), parse(fmt)), fmt)
    assert same(P.quantize(x, other), P.quantize.reference(x, other))
