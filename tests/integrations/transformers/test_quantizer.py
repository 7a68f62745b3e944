# SPDX-License-Identifier: BSD-3-Clause
"""BlockscaleConfig: what it takes, and to and from JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers as hf
from transformers.quantizers import auto

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig, BlockscaleQuantizer, register
from blockscale.integrations.transformers.quantizer import attach
from tests.support import fresh
from tests.support.transformers_models import gpt2, llama, same_bits

RECIPE = bs.Recipe("mxfp4", rules={"lm_head": "int8"}, skip=["*.q_proj"])


@pytest.mark.parametrize(
    "given", [RECIPE, RECIPE.to_dict(), RECIPE.to_json(), "mxfp4", bs.parse("mxfp4")], ids=repr
)
def test_there_and_back(given: Any) -> None:
    config = BlockscaleConfig(given, strict=True, seed=3)
    data = json.loads(json.dumps(config.to_dict()))
    back = BlockscaleConfig.from_dict(data)
    assert back == config
    assert hash(back) == hash(config)
    assert back.recipe == bs.Recipe.read(given)
    assert (back.strict, back.seed, back.quant_method) == (True, 3, "blockscale")
    assert "mxfp4" in repr(back) or "e2m1" in repr(back)
    assert BlockscaleConfig(given) != config


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(RECIPE.to_json())
    assert BlockscaleConfig(tmp_path / "recipe.json").recipe == RECIPE


def test_unused_arguments_come_back() -> None:
    config, rest = BlockscaleConfig.from_dict({"recipe": "int8"}, return_unused_kwargs=True, a=1)
    assert (config, rest) == (BlockscaleConfig("int8"), {"a": 1})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"recipe": "mxfp5"}, "mxfp5"),
        ({"recipe": "mxfp4", "bits": 4}, "unknown key 'bits'"),
        ({"recipe": "mxfp4", "version": 99}, "install a newer blockscale"),
        ({"quant_method": "gptq", "recipe": "mxfp4"}, "'gptq'"),
        ({}, "no recipe"),
    ],
)
def test_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BlockscaleConfig.from_dict(data)


Checkpoints = Callable[[str], tuple[type, Path]]


def test_what_it_says() -> None:
    quantizer = BlockscaleQuantizer(BlockscaleConfig("mxfp4"), pre_quantized=False)
    assert quantizer.is_serializable()
    assert quantizer.is_trainable
    assert quantizer.is_compileable
    assert quantizer.ledger is None
    assert not quantizer.param_needs_quantization(None, "x")
    assert quantizer.update_device_map({"": "disk"}) == {"": "cpu"}


def test_element_sizes(checkpoints: Checkpoints) -> None:
    """`device_map="auto"` shares out what quantized weights take, not the floats."""
    kind, path = checkpoints("llama")
    loader: Any = kind
    quantizer = BlockscaleQuantizer(BlockscaleConfig("mxfp4"), pre_quantized=False)
    model = loader.from_config(loader.config_class.from_pretrained(path)) if hasattr(
        loader, "from_config") else loader(loader.config_class.from_pretrained(path))  # fmt: skip
    quantizer.preprocess_model(model, checkpoint_files=[str(path / "model.safetensors")])
    weight = model.model.layers[0].mlp.up_proj.weight
    name = "model.layers.0.mlp.up_proj.weight"
    assert quantizer.param_element_size(model, name, weight) == 4.25 / 8
    norm = model.model.norm.weight
    assert quantizer.param_element_size(model, "model.norm.weight", norm) == 4


@pytest.mark.slow
def test_copies_and_pickles(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    loader: Any = kind
    model = loader.from_pretrained(path, quantization_config=BlockscaleConfig("mxfp4"))
    same_bits(model, deepcopy(model))
    torch.save(model, tmp_path / "model.pt")
    same_bits(model, torch.load(tmp_path / "model.pt", weights_only=False))


@pytest.mark.slow
def test_a_pipeline(checkpoints: Checkpoints, tmp_path: Path) -> None:
    _, path = checkpoints("vit")
    config = BlockscaleConfig("mxfp4")
    options = {"image_processor": hf.ViTImageProcessorPil(size={"height": 16, "width": 16}),
               "device": "cpu"}  # fmt: skip
    model_options = {"quantization_config": config}
    pipe = hf.pipeline("image-classification", str(path), model_kwargs=model_options, **options)
    pipe.model.save_pretrained(tmp_path)
    again = hf.pipeline("image-classification", str(tmp_path), **options)
    image = _image()
    assert pipe(image) == again(image)
    same_bits(pipe.model, again.model)


def _image() -> Any:
    image = pytest.importorskip("PIL.Image")
    return image.new("RGB", (16, 16), (200, 30, 90))


LOAD = """
{}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({!r})
print("LOADED", type(model.lm_head).__name__)
"""


def test_registering_again_changes_nothing() -> None:
    tables = auto.AUTO_QUANTIZER_MAPPING["blockscale"], auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    before = auto.AutoQuantizationConfig.from_dict
    register()
    assert tables[0] is BlockscaleQuantizer
    assert tables[1]["blockscale"] is BlockscaleConfig
    assert auto.AutoQuantizationConfig.from_dict is before


def test_method_is_quant_method() -> None:
    ours = BlockscaleConfig("int8")
    assert auto.AutoQuantizationConfig.from_dict(ours.to_dict()) == ours
    assert auto.AutoHfQuantizer.supports_quant_method(ours.to_dict())
    with pytest.raises(ValueError, match="no `quant_method`"):
        auto.AutoQuantizationConfig.from_dict({"method": "another"})


@pytest.mark.slow
@pytest.mark.parametrize("line", ["import blockscale.integrations.transformers", ""])
def test_one_line_in_a_fresh_python(line: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    _, path = checkpoints("llama")
    bs.quantize_directory(path, tmp_path / "out", "mxfp4")
    script = LOAD.format(line, str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if line:
        assert "LOADED QLinear" in done.stdout, done.stderr
    else:  # refused: nothing is filled with random numbers
        assert done.returncode != 0
        assert "no `quant_method`" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_directory_says_it_as_before(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=BlockscaleConfig("mxfp4")
    )
    model.save_pretrained(tmp_path / "a")
    bs.quantize_directory(path, tmp_path / "b", "mxfp4")
    told = [json.loads((tmp_path / each / "config.json").read_text()) for each in "ab"]
    assert told[0]["quantization_config"] == told[1]["quantization_config"]
    assert type(model) is kind


def loaded(path: Path) -> Any:
    model = llama()
    bs.quantize_(model, "mxfp4")
    bs.save(model, path / "file.safetensors")
    return bs.load(llama(), path / "file.safetensors")


def trained(path: Path) -> Any:
    del path
    model = llama()
    bs.prepare_qat(model, "mxfp4")
    return bs.convert(model)


@pytest.mark.parametrize("make", [loaded, trained])
def test_saved_as_from_pretrained_reads(make: Callable[[Path], Any], tmp_path: Path) -> None:
    model = make(tmp_path)
    model.save_pretrained(tmp_path / "out")
    same_bits(model, type(model).from_pretrained(tmp_path / "out"))


def test_only_what_holds_codes_and_once() -> None:
    model: Any = gpt2()
    attach([model], None)
    assert getattr(model, "hf_quantizer", None) is None
    bs.quantize_(model, "int8")
    assert model.hf_quantizer.quantization_config.recipe == bs.Recipe("int8")
    assert model.transformer.hf_quantizer is not None
    first = model.hf_quantizer
    attach([model], bs.Recipe("int4"))
    assert model.hf_quantizer is first
    same_bits(model, deepcopy(model))


QUANTIZE = """
import sys
import blockscale as bs, torch
model = torch.nn.Sequential(torch.nn.Linear(32, 8))
bs.quantize_(model, "int8")
assert not [name for name in sys.modules if name.partition(".")[0] == "transformers"]
"""


@pytest.mark.slow
def test_nothing_is_imported_for_other_models() -> None:
    fresh.run(QUANTIZE, check=True)
