# SPDX-License-Identifier: BSD-3-Clause
"""FBGEMM's rows of float8."""

import json

import torch
from safetensors.torch import save_file

import blockscale as bs


def test_values(tmp_path):
    codes = torch.randint(0, 256, (6, 40), dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.rand(6, 1)
    stored = {"m.weight": codes, "m.weight_scale": scale, "m.input_scale_ub": torch.tensor(1.0)}
    save_file(stored, tmp_path / "m.safetensors")
    assert bs.checkpoint(tmp_path).producer == "scaled codes"  # by names it could be anybody's
    told = {"quantization_config": {"quant_method": "fbgemm_fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with bs.checkpoint(tmp_path) as model:
        assert model.producer == "FBGEMM"
        assert model.evidence == "config.json: quant_method fbgemm_fp8"
        q, expected = model["m.weight"], codes.float() * scale
    assert str(q.format) == "e4m3:channel0:fp32"
    assert bool(((q.dequantize() == expected) | expected.isnan()).all())
