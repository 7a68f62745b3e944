# SPDX-License-Identifier: BSD-3-Clause
"""Reading files of ours: refusals before anything is read, and what layers have beside weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from tests.support.transformers_models import llama, same_bits, tied_llama

Checkpoints = Callable[[str], tuple[type, Path]]


def calibrated(make: Callable[[], Any], **options: Any) -> Any:
    torch.manual_seed(0)
    model = make()
    batches = [torch.arange(8)[None] + i for i in range(2)]
    bs.calibrate(model, batches, bs.Recipe("int8_channel", input="int8:tensor:fp32"), **options)
    return model


@pytest.mark.some(3)
@pytest.mark.parametrize("make", [llama, tied_llama])
@pytest.mark.parametrize("options", [{}, {"transform": "smoothquant"}], ids=["static", "smooth"])
def test_static_inputs_and_transforms(
    make: Callable[[], Any], options: dict[str, Any], tmp_path: Path
) -> None:
    model = calibrated(make, **options)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    same_bits(model, again)
    x = torch.arange(6)[None]
    assert torch.equal(model.eval()(x).logits, again(x).logits)


def test_quantized_biases(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("bert")
    loader: Any = kind
    recipe = bs.Recipe("mxfp4", bias="int16:tensor:fp32")
    model = loader.from_pretrained(path, quantization_config=BlockscaleConfig(recipe))
    assert any(".bias.codes" in name for name in model.state_dict())
    model.save_pretrained(tmp_path)
    same_bits(model, loader.from_pretrained(tmp_path))


def test_a_base_model_and_its_head(tmp_path: Path) -> None:
    """A directory of a model with a head gives the model without, and the other way."""
    import transformers as hf

    model: Any = tied_llama()
    bs.quantize_(model, "mxfp4")
    model.save_pretrained(tmp_path / "head")
    model.model.save_pretrained(tmp_path / "base")
    same_bits(model.model, hf.AutoModel.from_pretrained(tmp_path / "head"))
    same_bits(model, hf.AutoModelForCausalLM.from_pretrained(tmp_path / "base"))


def test_no_quantized_tensor(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    loader: Any = kind
    for each in path.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = BlockscaleConfig("mxfp4").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(bs.FileError, match="its files hold no quantized tensor"):
        loader.from_pretrained(tmp_path)


def test_another_shape(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    loader: Any = kind
    bs.quantize_directory(path, tmp_path / "out", "mxfp4")
    config = json.loads((tmp_path / "out" / "config.json").read_text()) | {"intermediate_size": 96}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(bs.FileError, match="this model's has"):
        loader.from_pretrained(tmp_path / "out")


def test_a_damaged_file(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    loader: Any = kind
    bs.quantize_directory(path, tmp_path / "out", "mxfp4")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        loader.from_pretrained(tmp_path / "out")


def test_on_meta(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A skeleton: quantized layers whose codes hold no data."""
    kind, path = checkpoints("llama")
    loader: Any = kind
    bs.quantize_directory(path, tmp_path / "out", "mxfp4")
    model = loader.from_pretrained(tmp_path / "out", device_map="meta")
    expected = loader.from_pretrained(tmp_path / "out").state_dict()
    found = model.state_dict()
    assert found.keys() == expected.keys()
    assert found["model.layers.0.mlp.up_proj.weight.codes"].is_meta


def test_a_buffer_that_a_rule_quantized(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """The command cannot know a buffer by its name; the model gets its values."""
    kind, path = checkpoints("encodec")
    loader: Any = kind
    tensors = load_file(path / "model.safetensors")
    name = "quantizer.layers.0.codebook.embed"
    tensors[name] = torch.randn_like(tensors[name])
    (tmp_path / "float").mkdir()
    save_file(tensors, tmp_path / "float" / "model.safetensors", {"format": "pt"})
    (tmp_path / "float" / "config.json").write_bytes((path / "config.json").read_bytes())
    bs.quantize_directory(tmp_path / "float", tmp_path / "plain", "mxfp4")
    state = loader.from_pretrained(tmp_path / "plain").state_dict()
    assert torch.equal(state[name], tensors[name])
    recipe = bs.Recipe("mxfp4", rules={"*.codebook.embed": "mxfp4"})
    bs.quantize_directory(tmp_path / "float", tmp_path / "ruled", recipe)
    with pytest.warns(UserWarning, match="dequantized, because their modules cannot hold codes"):
        state = loader.from_pretrained(tmp_path / "ruled").state_dict()
    assert torch.equal(state[name], bs.quantize(tensors[name], "mxfp4").dequantize())
