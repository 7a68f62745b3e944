# SPDX-License-Identifier: BSD-3-Clause
"""accelerate keeps codes elsewhere by default, as it does parameters, and outputs stay the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import cpu_offload, disk_offload, dispatch_model, infer_auto_device_map
from accelerate.hooks import remove_hook_from_submodules
from torch import nn

import blockscale as bs
from tests.support.layers_offload import X, held_bytes, llama

FORMATS = [
    "mxfp4",
    "nvfp4",
    "uint4:group32:bf16:offset",
    "int8_channel",
    "nf4",
    "book4:group32:fp32",
]


def offload(model: nn.Module, how: str, folder: Path, **more: Any) -> None:
    if how == "cpu_offload":
        cpu_offload(model, **more)
    elif how == "disk_offload":
        disk_offload(model, folder, **more)
    else:  # a model larger than the limit
        limit = {"cpu": int(held_bytes(model) * 0.75)}
        blocks = ["LlamaDecoderLayer"]
        places = infer_auto_device_map(model, max_memory=limit, no_split_module_classes=blocks)
        assert set(places.values()) == {"cpu", "disk"}
        dispatch_model(model, places, offload_dir=folder, **more)


@pytest.mark.some(8)
@pytest.mark.parametrize("how", ["cpu_offload", "disk_offload", "dispatch_model"])
@pytest.mark.parametrize("buffers", [False, True])
def test_outputs_are_equal_and_codes_are_away(how: str, buffers: bool, tmp_path: Path) -> None:
    model = llama()
    bs.quantize_(model, "nvfp4")
    bias = held_bytes(model.model.rotary_emb)
    whole, limit = held_bytes(model), 0.75 if how == "dispatch_model" else 0
    with torch.no_grad():
        expected = model(X).logits
        offload(model, how, tmp_path, offload_buffers=buffers)
        assert held_bytes(model) <= max(limit * whole, bias)
        for _ in range(2):  # each run reads them again, and lets them go
            assert torch.equal(model(X).logits, expected)
        assert held_bytes(model) <= max(limit * whole, bias)
        remove_hook_from_submodules(model)
        assert held_bytes(model) == whole
        assert torch.equal(model(X).logits, expected)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_part_of_a_format(fmt: str, tmp_path: Path) -> None:
    """Also a convolution, and an embedding; as a disk's files hold them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(64, 64), nn.Conv1d(8, 64, 3), nn.Flatten(), nn.Linear(64 * 62, 32, bias=False)
    ).eval()
    x = torch.arange(16).reshape(2, 8)
    with torch.no_grad(), bs.use("reference"):  # no kernel knows a table that is learned
        bs.quantize_(model, fmt)
        expected = model(x)
        disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
        assert all(b.is_meta for b in model.buffers())
        assert torch.equal(model(x), expected)


@pytest.mark.slow
def test_static_scales_stay_where_they_are_used(tmp_path: Path) -> None:
    model = llama()
    recipe = bs.Recipe("int8", "int8:tensor:fp32")
    bs.calibrate(model, [(X,)], recipe, transform="smoothquant", progress=False)
    with torch.no_grad():
        expected = model(X).logits
        disk_offload(model, tmp_path, offload_buffers=True)
        layer = model.model.layers[0].mlp.up_proj
        assert layer.qweight.codes.is_meta and not layer.input.scale.is_meta
        assert layer.qweight.device == torch.device("cpu")
        assert torch.equal(model(X).logits, expected)


def test_parameters_that_code_reads(tmp_path: Path) -> None:
    """Experts in one stack are held by a module of the model's own, and read by its code."""
    torch.manual_seed(0)
    config = hf.MixtralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=64, intermediate_size=64, num_local_experts=4,
    )  # fmt: skip
    model = hf.MixtralForCausalLM(config).eval()
    bs.quantize_(model, "mxfp4")
    with torch.no_grad():
        expected = model(X).logits
        disk_offload(model, tmp_path)
        assert held_bytes(model) == held_bytes(model.model.rotary_emb)
        assert torch.equal(model(X).logits, expected)


def test_classes_to_preload_work_as_before() -> None:
    model = llama()
    bs.quantize_(model, "nvfp4")
    with torch.no_grad():
        expected = model(X).logits
        names = ["QLinear", "QEmbedding"]
        cpu_offload(model, offload_buffers=True, preload_module_classes=names)
        assert torch.equal(model(X).logits, expected)
    assert held_bytes(model) == held_bytes(model.model.rotary_emb)


def test_a_copy_is_offloaded_as_well() -> None:
    model = llama()
    bs.quantize_(model, "mxfp4")
    with torch.no_grad():
        expected = model(X).logits
        cpu_offload(model)
        assert torch.equal(copy.deepcopy(model)(X).logits, expected)
