# SPDX-License-Identifier: BSD-3-Clause
"""MLX: settings of modules, other names, and what is refused. Values: test_recorded.py."""

import json

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from tests.export.checkpoints.layouts.recorded import cases, directory

STORED, VALUES, CONFIG = cases("mlx")["4 normal fp32"]


def test_a_module_has_settings_of_its_own(tmp_path):
    stored, values, config = cases("mlx")["6 bytes bf16"]
    everywhere = {"group_size": 128, "bits": 4, "a": config["mlx"]}
    with bs.checkpoint(directory(tmp_path / "d", stored, {"mlx": everywhere})) as found:
        assert found.stored["a.weight"].format == "uint6:group32:bf16:offset"
        assert torch.equal(found.dequantize("a.weight"), values)


def test_biases_as_transformers_calls_them(tmp_path):
    stored = {name.replace("biases", "qbiases"): tensor for name, tensor in STORED.items()}
    save_file(stored, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "metal", "group_size": 64, "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with bs.checkpoint(tmp_path) as found:
        assert torch.equal(found.dequantize("a.weight"), VALUES)


def test_a_stack_of_experts(tmp_path):
    stored = {name: torch.stack([tensor, tensor.flip(0)]) for name, tensor in STORED.items()}
    with bs.checkpoint(directory(tmp_path / "d", stored, CONFIG)) as found:
        assert torch.equal(found.dequantize("a.weight"), torch.stack([VALUES, VALUES.flip(0)]))


def test_without_a_configuration(tmp_path):
    """The default of mlx-lm: groups of 64."""
    with bs.checkpoint(directory(tmp_path / "d", STORED, {})) as found:
        assert found.producer == "MLX" and torch.equal(found.dequantize("a.weight"), VALUES)


FP4 = cases("mlx")["mxfp4 mixed"][0]


@pytest.mark.parametrize(
    ("stored", "config", "told"),
    [
        (STORED, {"group_size": 48}, "which match no number of bits in groups of 48"),
        (STORED | {"a.scales": torch.ones(7, 2)}, {}, "which match no number of bits"),
        (STORED | {"a.biases": torch.ones(8, 2).half()}, {}, "its biases are torch.float16"),
        ({n: t.double() if "weight" not in n else t for n, t in STORED.items()}, {}, "float64"),
        (FP4, {"group_size": 64}, "2 bits in groups of 64"),
        (FP4 | {"a.scales": torch.ones(8, 4)}, {"group_size": 32}, "MLX has no mode of"),
    ],
)
def test_what_is_refused(stored, config, told, tmp_path):
    with bs.checkpoint(directory(tmp_path / "d", stored, {"mlx": {"bits": 4} | config})) as found:
        assert told in found.stored["a.weight"].unread
