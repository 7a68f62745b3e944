# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA ModelOpt 0.47.0: its own values (tests/recorded/record_modelopt.py), of any bytes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs

RECORDED = Path(__file__).parents[3] / "recorded"
STORED = load_file(RECORDED / "modelopt.safetensors")
VALUES = load_file(RECORDED / "modelopt_values.safetensors")
FORMATS = {
    "nvfp4.weight": ("NVFP4", "e2m1:group16:e4m3"),
    "mxfp4.weight": ("MXFP4", "e2m1:group32:e8m0/given"),
    "mxfp8.weight": ("MXFP8", "e4m3:group32:e8m0/given"),
    "fp8.weight": ("FP8", "e4m3:tensor:fp32"),
    "pb.weight": ("FP8", "e4m3:tile128x128:fp32"),
    "awq.weight": ("INT4_AWQ", "int4:group128:fp32:full"),
}


def configured(path, algorithm="NVFP4"):
    shutil.copy(RECORDED / "modelopt.safetensors", path / "model.safetensors")
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm}}
    (path / "hf_quant_config.json").write_text(json.dumps(told))
    return path


def test_values(tmp_path):
    with bs.checkpoint(configured(tmp_path)) as model:
        assert (model.producer, model.evidence) == ("NVIDIA ModelOpt", "hf_quant_config.json")
        assert set(model) == {*FORMATS, "awq.pre_quant_scale"}
        for name, (kind, fmt) in FORMATS.items():
            q, expected = model[name], VALUES[name]
            assert (model.stored[name].kind, str(q.format)) == (kind, fmt)
            found = q.dequantize()[100:, 100:] if name == "pb.weight" else q.dequantize()
            # NVFP4's code 8 is +0 there and -0 here: equal, and the code is kept
            assert bool(((found == expected) | (found.isnan() & expected.isnan())).all()), name
        assert torch.equal(model["nvfp4.weight"].packed, STORED["nvfp4.weight"])
        assert model.warnings == ["the input of awq is multiplied by its pre_quant_scale"]


def test_by_names_alone():
    with bs.checkpoint(RECORDED / "modelopt.safetensors") as model:
        assert model.producer == "NVIDIA ModelOpt"
        assert model.evidence == "it has nvfp4.weight_scale_2"
        assert {name for name, each in model.stored.items() if each.format} == set(FORMATS)


def test_a_configuration_that_errs(tmp_path):
    told = "its configuration says W8A8_SQ_PER_CHANNEL, but its weights are FP8, INT4_AWQ, MXFP4"
    with bs.checkpoint(configured(tmp_path, "W8A8_SQ_PER_CHANNEL")) as model:
        assert any(each.startswith(told) for each in model.warnings)


def one(path, config=True, **stored):
    save_file({f"m.{name}": each for name, each in stored.items()}, path / "model.safetensors")
    if config:
        told = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
        (path / "config.json").write_text(json.dumps(told))
    return bs.checkpoint(path)


def test_stacks_of_experts(tmp_path):
    """Each matrix of a stack has a tensor scale of its own."""
    codes = torch.randint(0, 256, (3, 4, 16), dtype=torch.uint8)
    scale = torch.randint(0, 120, (3, 4, 2), dtype=torch.uint8).view(torch.float8_e4m3fn)
    outer = torch.rand(3)
    with one(tmp_path, weight=codes, weight_scale=scale, weight_scale_2=outer) as model:
        q = model["m.weight"]
    assert str(q.format) == "e2m1:group16:(e4m3:channel0:fp32)"
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    step = scale.float() * outer[:, None, None]
    assert torch.equal(q.dequantize(), values * step.repeat_interleave(16, -1))


def test_int8_rows(tmp_path):
    codes, scale = torch.randint(-128, 128, (4, 8), dtype=torch.int8), torch.rand(4)
    with one(tmp_path, weight=codes, weight_scale=scale) as model:
        assert model.stored["m.weight"].kind == "INT8"
        assert torch.equal(model["m.weight"].dequantize(), codes.float() * scale[:, None])


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ({"weight": torch.zeros(4, 16).byte(), "weight_scale": torch.ones(4, 3).byte()},
         "of an unknown format"),
        ({"weight": torch.zeros(4, 16).byte(), "weight_scale_2": torch.ones(5),
          "weight_scale": torch.ones(4, 2).to(torch.float8_e4m3fn)}, "its weight_scale_2 is"),
        ({"weight": torch.zeros(4, 16).to(torch.float8_e4m3fn), "weight_scale": torch.ones(3)},
         "match no block"),
    ],
)  # fmt: skip
def test_what_is_no_such_weight(stored, reason, tmp_path):
    with one(tmp_path, **stored) as model, pytest.raises(bs.FileError, match=reason):
        model["m.weight"]
