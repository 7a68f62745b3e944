# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes 0.50.2 on a CPU (tests/recorded/record_bitsandbytes.py): its codes and values."""

import pathlib

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, choose_qparams, dequantize, quantize
from tests.support.profile_inputs import KINDS

RECORDED = load_file(pathlib.Path(__file__).parents[1] / "recorded" / "bitsandbytes.safetensors")


def unpacked(packed: Tensor) -> Tensor:
    """Two codes a byte, the first in the high nibble."""
    return torch.stack([packed >> 4, packed & 15], -1).flatten()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_codes(name: str, kind: str) -> None:
    """Blocks of 64 run across rows; numbers are multiplied by fl(1 / amax).

    Its fp4 on a CPU gives -0 to small positive numbers and 0 to small negative ones, by the order
    in which equal values happen to be sorted; ours keep their sign.
    """
    x, absmax = RECORDED[f"x.{kind}"], RECORDED[f"{name}.absmax.{kind}"]
    fmt = parse(f"{name}:flat64:fp32:recip")
    zeros = absmax == 0  # it stores 0 there, and all codes are those of 0
    qparams = choose_qparams(x, fmt)
    assert torch.equal(torch.where(zeros, 0.0, qparams.scale.flatten()), absmax)
    theirs = unpacked(RECORDED[f"{name}.packed.{kind}"]).reshape(x.shape)
    ours = quantize(x, qparams, fmt)
    zero, negative_zero = fmt.element.values.index(0.0), 8 if name == "fp4" else 7
    without_sign = [torch.where(codes == negative_zero, zero, codes) for codes in (ours, theirs)]
    assert int((without_sign[0] != without_sign[1]).sum()) == 0
    values = dequantize(theirs, QParams(absmax.reshape(1, -1)), fmt, torch.float32)
    assert torch.equal(values, RECORDED[f"{name}.values.{kind}"])


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_values_of_random_codes(name: str) -> None:
    codes = unpacked(RECORDED[f"{name}.bytes"]).reshape(16, 64)
    scales = RECORDED[f"{name}.scales"].reshape(1, 16)
    values = dequantize(codes, QParams(scales), parse(f"{name}:flat64:fp32"), torch.float32)
    assert torch.equal(values, RECORDED[f"{name}.values"].reshape(16, 64))
