# SPDX-License-Identifier: BSD-3-Clause
"""Shapes and names say which tensors can be quantized; the ledger says of the others why not."""

import pytest
import torch

from blockscale.core.ledger import SkippedError
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe
from blockscale.files.directory.eligibility import has_conv1d
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.files.directory.reference_bits import check_bits, load_all
from tests.support.file_models import tiny_tensors, write_model


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gpt2", "vision-encoder-decoder"])
def test_gpt2_stores_matrices_transposed(model_type, tmp_path):
    config = {"model_type": model_type, "decoder": {"model_type": "gpt2"}}
    x = torch.randn(24, 72)
    tensors = {
        "h.0.attn.c_attn.weight": x,
        "h.0.mlp.c_proj.weight": x.bfloat16(),
        "wte.weight": x + 1,
    }
    model = write_model(tmp_path / "model", tensors, config=config)
    for name in ("int8_channel", "mxfp4", "nvfp4", "int4:group8:fp32:stochastic"):
        quantize_directory(model, tmp_path / name, name)
        layouts = dict.fromkeys(tensors, "transposed") | {"wte.weight": "plain"}
        check_bits(load_all(tmp_path / name), tensors, layouts, parse(name))
    plain = write_model(tmp_path / "plain", tensors)
    quantize_directory(plain, tmp_path / "not", "int8_channel")
    check_bits(
        load_all(tmp_path / "not"), tensors, dict.fromkeys(tensors, "plain"), parse("int8_channel")
    )


def test_model_types():
    assert has_conv1d({"model_type": "openai-gpt"})
    assert not has_conv1d({"model_type": "llama"})
    assert not has_conv1d({})
    assert not has_conv1d(None)


def test_skips_are_warned_of_or_refused(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    recipe = Recipe("mxfp4", skip=["nothing.*"])
    with pytest.warns(UserWarning, match=r"double.weight: skipped, float64(.|\n)*'nothing.\*'"):
        quantize_directory(model, tmp_path / "out", recipe)
    with pytest.raises(SkippedError, match=r"double.weight \(matrix\): float64"):
        quantize_directory(model, tmp_path / "strict", recipe, strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    recipe = Recipe("mxfp4", skip=["double", "eight.weight"])
    quantize_directory(model, tmp_path / "strict", recipe, strict=True)


def test_a_block_that_does_not_fit_is_skipped(tmp_path):
    tensors = {
        "a.weight": torch.ones(4, 8),
        "conv.weight": torch.ones(4, 8, 3, 3),
        "odd": torch.ones(2, 2, 2, 2),
        "conv.parametrizations.weight.original1": torch.ones(4, 4, 8),
    }
    model = write_model(tmp_path / "model", tensors | {"stack": torch.ones(2, 4, 8)})
    rules = {"a.weight": "int8", "stack": "int8:channel2:fp32", "odd": "int8"}
    recipe = Recipe("int8:channel2:fp32", rules=rules)
    ledger = quantize_directory(model, tmp_path / "out", recipe)
    assert [entry.name for entry in ledger.quantized] == ["a.weight", "odd"]
    for name in ("conv.weight", "stack"):  # a stack's matrices have two dimensions
        assert "'channel2' needs dimension 2, but the tensor has 2" in ledger[name].reason
    reason = ledger["conv.parametrizations.weight.original1"].reason
    assert reason == "part of a parametrized weight: remove the parametrization and save again"
