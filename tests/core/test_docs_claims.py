# SPDX-License-Identifier: BSD-3-Clause
"""What docs/numerics.md, section 8, says that the conventions cost and gain, measured."""

import pytest
import torch
from torch import Tensor

from blockscale.core import reference as R
from blockscale.core.parse import parse


def sqnr(x: Tensor, spelling: str) -> float:
    """Signal over quantization noise, in dB."""
    fmt = parse(spelling)
    error = R.fake_quantize(x, R.choose_qparams(x, fmt), fmt).double() - x.double()
    return 10 * float(torch.log10(x.double().square().sum() / error.square().sum()))


# Over seeds the deviation is 0.01 and 0.02 dB at this size. The other rules miss these bounds:
# rceil loses 0.03 dB for e2m1, even gains only 0.53 dB for e4m3, ceil loses 2 dB for e2m1.
@pytest.mark.parametrize(
    ("element", "gain", "within"), [("e2m1", 0.24, 0.03), ("e4m3", 0.86, 0.06)]
)
def test_tosa_gains_over_floor(element: str, gain: float, within: float) -> None:
    x = torch.randn(1024, 512)
    block = f"{element}:group32:e8m0"
    measured = sqnr(x, f"{block}/tosa") - sqnr(x, f"{block}/floor")
    assert measured == pytest.approx(gain, abs=within)


def codes(x: Tensor, step: Tensor, spelling: str) -> Tensor:
    return R.quantize(x, R.QParams(step), parse(spelling))


def exact_ties(step: Tensor) -> Tensor:
    """x [rows, columns] whose float32 quotient by its row's step is some k + 1/2 of int8."""
    halves = torch.randint(-127, 127, (step.shape[0], 256)) + 0.5
    x = halves * step
    tie = x / step == halves
    assert tie.float().mean() > 0.5  # else there is little to measure
    return torch.where(tie, x, 0.0)


def test_a_reciprocal_moves_ties() -> None:
    """Of int8, with steps log-uniform over binades; the fewer bits, the fewer: 7 % of int3's."""
    step = (torch.rand(4000, 1) * 20 - 10).exp2()
    x = exact_ties(step)
    changed = codes(x, step, "int8:token:fp32") != codes(x, step, "int8:token:fp32:recip")
    assert 0.11 <= changed.sum() / (x != 0).sum() <= 0.13


def test_a_power_of_two_moves_none() -> None:
    step = torch.arange(-20, 20).exp2()[:, None]
    x = exact_ties(step)
    assert torch.equal(codes(x, step, "int8:token:fp32"), codes(x, step, "int8:token:fp32:recip"))


def test_any_decoder_reads_tosa() -> None:
    """A rule chooses the byte; what the byte means is the same for all."""
    x = torch.randn(64, 64)
    tosa, floor = parse("e4m3:group32:e8m0/tosa"), parse("e4m3:group32:e8m0/floor")
    qparams = R.choose_qparams(x, tosa)
    values = R.quantize(x, qparams, tosa)
    read = [R.dequantize(values, qparams, fmt, torch.float32) for fmt in (tosa, floor)]
    assert torch.equal(*read)
    assert not torch.equal(R.choose_qparams(x, floor).scale, qparams.scale)
