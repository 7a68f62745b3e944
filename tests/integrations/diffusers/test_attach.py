# SPDX-License-Identifier: BSD-3-Clause
"""Models that diffusers did not quantize itself are saved as if it had."""

from pathlib import Path

import torch

import blockscale as bs
from tests.integrations.diffusers.models import DIFFUSERS, same_bits, unet

pytestmark = DIFFUSERS


def test_quantized_in_memory(tmp_path: Path) -> None:
    model = unet()
    bs.quantize_(model, "mxfp4")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    same_bits(model, again)
    x = torch.randn(1, 1, 8, 8)
    assert torch.equal(model.eval()(x, 1).sample, again(x, 1).sample)
    again.save_pretrained(tmp_path / "again")
    same_bits(model, type(model).from_pretrained(tmp_path / "again"))


def test_its_models_and_no_others() -> None:
    inner = unet()
    outer = torch.nn.Sequential(torch.nn.Linear(32, 8), inner)
    bs.quantize_(outer, bs.Recipe("mxfp4", skip=["0"]))
    assert inner.hf_quantizer.quantization_config.recipe == bs.Recipe("mxfp4", skip=["0"])
    assert not hasattr(outer, "hf_quantizer")
    plain = unet()
    bs.quantize_(torch.nn.Sequential(torch.nn.Linear(32, 8), plain), bs.Recipe("mxfp4", skip=["1"]))
    assert not hasattr(plain, "hf_quantizer")
