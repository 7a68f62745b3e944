# SPDX-License-Identifier: BSD-3-Clause
"""The quantizer as transformers sees it."""

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
from tests.support.transformers_models import same_bits

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


def test_copies_and_pickles(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("llama")
    loader: Any = kind
    model = loader.from_pretrained(path, quantization_config=BlockscaleConfig("mxfp4"))
    same_bits(model, deepcopy(model))
    torch.save(model, tmp_path / "model.pt")
    same_bits(model, torch.load(tmp_path / "model.pt", weights_only=False))


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
