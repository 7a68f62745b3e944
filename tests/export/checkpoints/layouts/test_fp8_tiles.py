# SPDX-License-Identifier: BSD-3-Clause
"""FP8 in tiles: DeepSeek's and transformers' own values, of any bytes."""

import json

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs

E4M3 = torch.float8_e4m3fn
CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def any_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def files(path, stored, config=None):
    save_file(
        {f"m.{name}": each.contiguous() for name, each in stored.items()}, path / "a.safetensors"
    )
    (path / "config.json").write_text(json.dumps({"quantization_config": config} if config else {}))
    return bs.checkpoint(path)


def spread(scale, rows, columns, size=128):
    wide = scale.float().repeat_interleave(size, 0).repeat_interleave(size, 1)
    return wide[:rows, :columns]


def same(found, expected):
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("config", [CONFIG, None])
def test_partial_tiles(config, tmp_path):
    codes, scale = any_bytes(200, 300).view(E4M3), torch.randn(2, 3)
    with files(tmp_path, {"weight": codes, "weight_scale_inv": scale}, config) as model:
        told = "config.json: quant_method fp8" if config else "it has m.weight_scale_inv"
        assert (model.producer, model.evidence) == ("FP8 tiles (DeepSeek, transformers)", told)
        q = model["m.weight"]
    assert str(q.format) == "e4m3:tile128x128:fp32" and not model.warnings
    assert same(q.dequantize(), codes.float() * spread(scale, 200, 300))


def test_powers_of_two_in_either_dtype(tmp_path):
    codes, scale = any_bytes(128, 256).view(E4M3), torch.tensor([[120, 130]], dtype=torch.uint8)
    for stored in (scale, scale.view(torch.float8_e8m0fnu)):
        with files(tmp_path, {"weight": codes, "weight_scale_inv": stored}, CONFIG) as model:
            q = model["m.weight"]
        assert str(q.format) == "e4m3:tile128x128:e8m0/given"
        powers = torch.ldexp(torch.ones(1, 2), scale.int() - 127)
        assert same(q.dequantize(), codes.float() * spread(powers, 128, 256))


def test_experts_of_two_codes_a_byte(tmp_path):
    """Other tiles than the configuration says: shapes tell, and it is said."""
    codes, scale = any_bytes(6, 32).view(torch.int8), any_bytes(6, 2) % 255
    with files(tmp_path, {"weight": codes, "weight_scale_inv": scale}, CONFIG) as model:
        q = model["m.weight"]
        assert model.warnings == [
            "its configuration says tile128x128, and 1 tensors are not, such as m.weight (group32)"
        ]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table, raw = torch.cat([table, -table]), codes.view(torch.uint8)
    values = table[torch.stack([raw & 15, raw >> 4], -1).flatten(-2).long()]
    step = torch.ldexp(torch.ones(6, 2), scale.int() - 127).repeat_interleave(32, 1)
    assert str(q.format) == "e2m1:group32:e8m0/given"
    assert torch.equal(q.dequantize(), values * step)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiles", "powers", "four bits"])
def test_transformers_own_values(kind, tmp_path):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    codes, scale = any_bytes(256, 384).view(E4M3), torch.randn(2, 3)
    if kind == "powers":
        scale = any_bytes(2, 3) % 255
    if kind == "four bits":
        codes, scale = any_bytes(6, 32).view(torch.int8), any_bytes(6, 2) % 255
    expected = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    with files(tmp_path, {"weight": codes, "weight_scale_inv": scale}, CONFIG) as model:
        assert same(model["m.weight"].dequantize(), expected)


def test_a_scale_that_fits_no_block(tmp_path):
    stored = {"weight": any_bytes(200, 300).view(E4M3), "weight_scale_inv": torch.ones(7, 9)}
    with files(tmp_path, stored, CONFIG) as model, pytest.raises(bs.FileError, match="no block"):
        model["m.weight"]
