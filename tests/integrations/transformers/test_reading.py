# SPDX-License-Identifier: BSD-3-Clause
"""Reading files of ours: refusals before anything is read, and what layers have beside weights."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaForCausalLM, Qwen2Config

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig, from_checkpoint
from blockscale.layers.layer import QLayer
from tests.support.checkpoints_loading import GPTQ, stored_llama
from tests.support.checkpoints_loading import llama as checkpoints_loading_llama
from tests.support.conversion_models import CONFIG, tensors, value, write
from tests.support.transformers_models import llama, same_bits, tied_llama

Checkpoints = Callable[[str], tuple[type, Path]]


def calibrated(make: Callable[[], Any], **options: Any) -> Any:
    torch.manual_seed(0)
    model = make()
    batches = [torch.arange(8)[None] + i for i in range(2)]
    bs.calibrate(model, batches, bs.Recipe("int8_channel", input="int8:tensor:fp32"), **options)
    return model


@pytest.mark.slow
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


@pytest.mark.slow
def test_quantized_biases(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("bert")
    loader: Any = kind
    recipe = bs.Recipe("mxfp4", bias="int16:tensor:fp32")
    model = loader.from_pretrained(path, quantization_config=BlockscaleConfig(recipe))
    assert any(".bias.codes" in name for name in model.state_dict())
    model.save_pretrained(tmp_path)
    same_bits(model, loader.from_pretrained(tmp_path))


@pytest.mark.slow
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


@pytest.mark.slow
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


# Checkpoints of other producers as models of transformers: the files' codes, and their tokens.

RECORDED = Path(__file__).parents[2] / "recorded"
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": GPTQ,
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}


CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def written(path: Path, producer: str) -> nn.Module:
    """A directory as a producer leaves it; the model with the values of its codes."""
    theirs = checkpoints_loading_llama()
    stored = stored_llama(theirs, producer)
    theirs.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = CONFIGS[producer]
    (path / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in stored.items()}, path / "model.safetensors")
    return theirs


def same_weights(ours: nn.Module, theirs: nn.Module) -> int:
    layers = [(n, m) for n, m in theirs.model.layers.named_modules() if isinstance(m, nn.Linear)]
    for name, layer in layers:
        found = ours.model.layers.get_submodule(name)
        assert isinstance(found, QLayer)
        assert torch.equal(found.dequantize_weight(), layer.weight)
    return len(layers)


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["gptq", pytest.param("bitsandbytes", marks=pytest.mark.slow)])
def test_a_directory(producer: str, tmp_path: Path) -> None:
    theirs = written(tmp_path, producer)
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_new_tokens": 5}))
    ours = from_checkpoint(tmp_path)
    assert isinstance(ours, LlamaForCausalLM) and not ours.training
    assert same_weights(ours, theirs) == 14
    assert ours.generation_config.max_new_tokens == 5
    assert {each.device.type for each in (*ours.parameters(), *ours.buffers())} == {"cpu"}
    ids = torch.randint(0, 96, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-5)
        how = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 5}
        assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))
    ours.save_pretrained(tmp_path / "saved")  # as a directory of ours, the order of inputs too
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert same_weights(again, theirs) == 14
    with torch.no_grad():
        assert torch.equal(again(ids).logits, ours(ids).logits)


def test_a_gguf_file() -> None:
    expected = load_file(RECORDED / "gguf_llama.safetensors")
    model = from_checkpoint(RECORDED / "llama.gguf")
    assert isinstance(model.lm_head, QLayer) and isinstance(model.model.embed_tokens, QLayer)
    assert model.dtype == torch.float32 and model.config.eos_token_id is None
    with torch.no_grad():
        logits = model(expected["ids"]).logits
        torch.testing.assert_close(logits, expected["logits"], rtol=1e-4, atol=1e-5)
        sequel = model.generate(expected["ids"], max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(sequel, expected["sequel"])
    base = from_checkpoint(RECORDED / "llama.gguf", AutoModelForCausalLM, dtype=torch.bfloat16)
    assert base.dtype == torch.bfloat16
    assert base(expected["ids"]).logits.dtype == torch.bfloat16


def test_floats_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters have no data until they are read; positions' frequencies are there."""
    seen: dict[str, set[str]] = {}

    def load(model: nn.Module, path: Path) -> nn.Module:
        seen["parameters"] = {each.device.type for each in model.parameters()}
        seen["buffers"] = {each.device.type for each in model.buffers()}
        return bs.load(model, path)

    monkeypatch.setattr(sys.modules[from_checkpoint.__module__], "load", load)
    from_checkpoint(RECORDED / "llama.gguf", LlamaForCausalLM)
    assert seen == {"parameters": {"meta"}, "buffers": {"cpu"}}
    assert nn.Linear(2, 2).weight.device.type == "cpu"  # and what is made after has data


@pytest.mark.slow
def test_a_config_of_its_own(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "llama.gguf", tmp_path / "m.gguf")
    first = from_checkpoint(tmp_path / "m.gguf")
    config = first.config
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    config.save_pretrained(tmp_path / "config")
    for given in (config, tmp_path / "config"):
        again = from_checkpoint(tmp_path / "m.gguf", config=given)
        ids = torch.arange(9)[None]
        assert torch.equal(again(ids).logits, first(ids).logits)
    assert config.quantization_config == {"quant_method": "gptq", "bits": 4}  # it is the caller's


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        bs.FileError, match="org/name does not exist: for a name on the hub, download"
    ):
        from_checkpoint("org/name")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(bs.FileError, match=r"has no config.json, which describes the model"):
        from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "phi99"}')
    with pytest.raises(bs.FileError, match=r"config.json: transformers: .*phi99"):
        from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(
        bs.FileError, match="AutoModelForCausalLM cannot build a model from its config"
    ):
        from_checkpoint(tmp_path)
    remote = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(remote))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(bs.FileError, match=r"config.json: transformers: .*custom code"):
        from_checkpoint(tmp_path)  # and nothing is asked
    with pytest.raises(bs.FileError, match=r"it lacks|not of this model|has shape"):
        from_checkpoint(RECORDED / "llama.gguf", config=Qwen2Config(num_hidden_layers=1))
    for size in (-1, 0):
        AutoConfig.for_model("llama").save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text()) | {"num_attention_heads": size}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(bs.FileError, match=r"config"):
            from_checkpoint(tmp_path, AutoModel)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["gptq", "awq", "compressed-tensors", "mlx", "gguf", "blockscale"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_what_convert_writes_of_each_producer(to: str, kind: str, tmp_path: Path) -> None:
    """The same values and logits as the float model of them has; of GGUF without any config."""
    torch.manual_seed(7)
    config = CONFIG | {"model_type": kind, "architectures": [CLASSES[kind]], "head_dim": 64}
    held = tensors("uint4:group64:fp16:asym")
    layer = "model.layers.0.self_attn"
    if kind == "qwen2":
        rows = {"q": 256, "k": 128, "v": 128}
        held |= {f"{layer}.{name}_proj.bias": torch.randn(rows[name]) for name in rows}
    if kind == "qwen3":
        held |= {f"{layer}.{name}_norm.weight": torch.rand(64) + 1 for name in "qk"}
    source = write(tmp_path / "source", held, config=config)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).float().eval()
    theirs.load_state_dict({name: value(tensor) for name, tensor in held.items()})
    path = tmp_path / ("m.gguf" if to == "gguf" else to)
    if to == "blockscale":
        path = source
    else:
        bs.export.convert_checkpoint(source, path, to)
    ours = from_checkpoint(path, dtype=torch.float32)
    assert type(ours) is type(theirs)
    assert same_weights(ours, theirs) == 7
    ids = torch.randint(0, 32, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
        how = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 5, "eos_token_id": None}
        assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))


def test_converters_of_transformers_that_cannot_copy_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.core_model_loading import MergeModulelist, WeightConverter, WeightTransform

    from blockscale.integrations.transformers.reading import _copy

    old = WeightConverter(["a.*.w"], ["b"], [MergeModulelist(dim=0)])
    old.scope_prefix, old.base_model_prefix = "one", "model"
    made = [_copy(old, ["a.*.w.codes"], old.operations)]
    monkeypatch.delattr(WeightConverter, "copy", raising=False)
    monkeypatch.delattr(WeightTransform, "copy", raising=False)
    made.append(_copy(old, ["a.*.w.codes"], old.operations))
    for each in made:
        assert type(each) is WeightConverter and each.operations == old.operations
        assert (each.scope_prefix, each.base_model_prefix) == ("one", "model")
        assert each._original_target_patterns == ["b"]
    assert made[0]._original_source_patterns == made[1]._original_source_patterns
