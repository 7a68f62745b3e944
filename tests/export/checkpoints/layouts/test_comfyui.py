# SPDX-License-Identifier: BSD-3-Clause
"""ComfyUI's float8 with a scale, and casts without one."""

import torch
from safetensors.torch import save_file

import blockscale as bs


def test_values(tmp_path):
    codes = torch.randint(0, 124, (6, 40), dtype=torch.uint8).view(torch.float8_e5m2)
    cast = torch.randn(3, 4).to(torch.float8_e4m3fn)
    stored = {"m.weight": codes, "m.scale_weight": torch.tensor([0.013]), "n.weight": cast}
    save_file(stored | {"scaled_fp8": torch.empty(0)}, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as model:
        assert (model.producer, model.evidence) == ("ComfyUI", "it has m.scale_weight")
        assert set(model) == {"m.weight", "n.weight", "scaled_fp8"}
        q = model["m.weight"]
        assert str(q.format) == "e5m2:tensor:fp32"
        assert torch.equal(q.dequantize(), codes.float() * torch.tensor(0.013))
        assert torch.equal(model["n.weight"].float(), cast.float())  # a cast stays its dtype
