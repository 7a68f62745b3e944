# SPDX-License-Identifier: BSD-3-Clause
"""Static scales of keys and values: calibrated, written where servers look, read from there."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockscale.integrations.transformers import CacheScales, QuantizedCache
from tests.support.rotation_models import decoder

TWO = CacheScales((0.5, 0.25), (1.0, 2.0))


def checkpoint(place: Path, config: dict[str, Any], layers: int = 2, indexed: bool = False) -> Path:
    """A directory with a key projection for each layer."""
    names = [f"model.layers.{i}.self_attn.k_proj.weight" for i in range(layers)]
    save_file({name: torch.zeros(2, 2) for name in names}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))
    if indexed:
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    return place


def written(place: Path) -> dict[str, float]:
    """The scales by the names that servers look for, in all files of a directory."""
    each = {n: t for path in place.glob("*.safetensors") for n, t in load_file(path).items()}
    assert all(t.dtype == torch.float32 and t.numel() == 1 for n, t in each.items() if "scale" in n)
    return {name: float(t) for name, t in each.items() if name.endswith("_scale")}


def test_compressed_tensors(tmp_path: Path) -> None:
    """Beside floats: names, scheme and index as its readers expect them."""
    place = checkpoint(tmp_path, {"model_type": "llama"}, indexed=True)
    TWO.write(place)
    assert written(place) == {
        "model.layers.0.self_attn.k_scale": 0.5, "model.layers.0.self_attn.v_scale": 1.0,
        "model.layers.1.self_attn.k_scale": 0.25, "model.layers.1.self_attn.v_scale": 2.0,
    }  # fmt: skip
    config = json.loads((place / "config.json").read_text())
    assert config["model_type"] == "llama"
    held = config["quantization_config"]
    assert held["quant_method"] == "compressed-tensors" and held["config_groups"] == {}
    scheme = held["kv_cache_scheme"]
    asked = ("num_bits", "type", "symmetric", "strategy", "dynamic")
    assert [scheme[name] for name in asked] == [8, "float", True, "tensor", False]
    index = json.loads((place / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(written(place)) < set(index) and len(index) == 6
    assert CacheScales.read(place) == TWO


def test_modelopt(tmp_path: Path) -> None:
    """Of a checkpoint of its own: what was said of the weights stays."""
    place = checkpoint(tmp_path, {"quantization_config": {"quant_method": "modelopt", "a": 1}})
    (place / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    TWO.write(place, "modelopt")
    names = [
        f"model.layers.{i}.self_attn.{n}"
        for i in (0, 1)
        for n in ("k_proj.k_scale", "v_proj.v_scale")
    ]
    assert sorted(written(place)) == names
    held = json.loads((place / "config.json").read_text())["quantization_config"]
    assert held["a"] == 1 and held["kv_cache_scheme"]["num_bits"] == 8
    own = json.loads((place / "hf_quant_config.json").read_text())["quantization"]
    assert own == {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    assert CacheScales.read(place) == TWO


@pytest.mark.parametrize(
    ("config", "layers", "layout", "says"),
    [
        ({}, 3, "compressed-tensors", "scales are of 2 layers, and the checkpoint has 3"),
        ({}, 2, "awq", "layout must be"),
        ({}, 2, "modelopt", "quant_method is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, 2, "compressed-tensors", "is 'gptq'"),
    ],
)
def test_what_is_not_written(
    config: dict[str, Any], layers: int, layout: str, says: str, tmp_path: Path
) -> None:
    place = checkpoint(tmp_path, config, layers)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(ValueError, match=says):
        TWO.write(place, layout)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_what_is_not_read(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, {})
    with pytest.raises(ValueError, match="found no k_scale of layer 0"):
        CacheScales.read(place)
    name = "model.layers.0.self_attn."
    save_file({name + "k_scale": torch.ones(1)}, place / "a.safetensors")
    with pytest.raises(ValueError, match="found no v_scale of layer 0"):
        CacheScales.read(place)
    save_file({name + "k_scale": torch.ones(8)}, place / "a.safetensors")
    with pytest.raises(ValueError, match=r"k_scale has shape \(8,\)"):
        CacheScales.read(place)
    for keys, values, says in (
        ((1.0,), (), "for each layer"),
        ((0.0,), (1.0,), "positive and finite"),
    ):
        with pytest.raises(ValueError, match=says):
            CacheScales(keys, values)


def test_calibrated_and_used(tmp_path: Path) -> None:
    """The largest key becomes 448; the cache's codes are torch's float8 of keys over the scale."""
    model = decoder("qwen3", torch.float32)
    model.config.use_cache = True
    tokens = torch.arange(40)[None]
    with pytest.raises(ValueError, match="batches is empty"):
        CacheScales.calibrate(model, [])
    with pytest.raises(TypeError, match="write \\[batch\\]"):
        CacheScales.calibrate(model, {"input_ids": tokens})
    with pytest.raises(TypeError, match=r"expected batches that are mappings.*found a Tensor"):
        CacheScales.calibrate(model, [tokens])
    scales = CacheScales.calibrate(model, [{"input_ids": tokens[:, :9]}, {"input_ids": tokens}])
    held = QuantizedCache(model.config, scales, window=0)
    wide = QuantizedCache(model.config, "int8_token", window=100)
    with torch.no_grad():
        for cache in (held, wide):
            model(tokens, past_key_values=cache)
    for layer, plain, scale in zip(held.layers, wide.layers, scales.keys, strict=True):
        keys = plain.keys
        assert keys.abs().max() <= scale * 448 * 1.000001
        expected = (keys[:, :, :32] / scale).to(torch.float8_e4m3fn)
        codes = layer.codes[0]
        assert torch.equal(codes.packed.view(torch.uint8), expected.view(torch.uint8))
        assert torch.equal(codes.dequantize(), expected.float() * scale)
    again = QuantizedCache(model.config, scales, window=0)
    kept = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "eos_token_id": None}
    assert model.generate(tokens, past_key_values=again, **kept).shape == (1, 46)
    with pytest.raises(ValueError, match=r"are of keys and values in e4m3.*got 'hadamard'"):
        QuantizedCache(model.config, scales, rotate="hadamard")
    with pytest.raises(ValueError, match="scales are of 1 layers, and the model has"):
        QuantizedCache(model.config, CacheScales((1.0,), (1.0,)))


def test_padding_does_not_count_and_the_mode_stays() -> None:
    """The scales of sentences in one padded batch are the larger of those of each alone."""
    model = decoder("qwen3", torch.float32).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.weight.data[0] = 1000.0  # of the token that fills up: larger keys than any
    long, short = torch.arange(1, 20)[None], torch.arange(30, 37)[None]
    alone = [CacheScales.calibrate(model, [{"input_ids": x}]) for x in (long, short)]
    mask = torch.ones(2, 19, dtype=torch.long)
    mask[1, 7:] = 0
    padded = torch.cat([long, torch.cat([short, torch.zeros(1, 12, dtype=torch.long)], 1)])
    both = CacheScales.calibrate(model, [{"input_ids": padded, "attention_mask": mask}])
    for part in ("keys", "values"):
        expected = [
            max(pair) for pair in zip(*(getattr(each, part) for each in alone), strict=True)
        ]
        assert getattr(both, part) == pytest.approx(expected, rel=1e-5)
    assert model.training and all(module.training for module in model.modules())


def test_a_layer_that_no_scale_holds_is_named() -> None:
    model = decoder("qwen3", torch.float32)
    model.model.layers[1].self_attn.v_proj.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"layer 1: the largest of its values is (inf|nan)"):
        CacheScales.calibrate(model, [{"input_ids": torch.arange(1, 9)[None]}])
