"""Directories in the hub's names load into the models that wrote them."""

import warnings

import pytest
import torch
import transformers
from safetensors.torch import save_file

import blockscale as bs
from blockscale.files.metadata import FileError
from blockscale.files.renaming.renamed import renamed
from blockscale.files.stored_model import open_stored_model
from tests.files.renaming.oracle import dequantized, differing
from tests.support.renaming_cases import CASES
from tests.support.renaming_hub import MODELS, build, save


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_as_transformers_loads_the_pieces(name, fmt, tmp_path):
    """The oracle is transformers' own loader, on the pieces dequantized one by one."""
    model = build(name)
    names = list(model.state_dict())
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", fmt)
    found = bs.load(build(name, 1), tmp_path / "quantized")
    pieces = dequantized(tmp_path / "quantized", tmp_path / "pieces")
    expected = getattr(transformers, MODELS[name][0]).from_pretrained(pieces, dtype=torch.float32)
    assert differing(found, expected, names) == []
    assert differing(found, model, names)  # something is quantized


@pytest.mark.parametrize("name", ["mixtral", "detr", "llava"])
def test_on_meta(name, tmp_path):
    """A model without memory of its own gets the same."""
    model = build(name)
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", "nvfp4")
    with torch.device("meta"):
        empty = getattr(transformers, MODELS[name][0])(MODELS[name][1]())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of buffers that no file holds
        found = bs.load(empty, tmp_path / "quantized")
    parameters = [name for name, _ in model.named_parameters()]
    assert differing(found, bs.load(model, tmp_path / "quantized"), parameters) == []


def test_codes_of_experts_are_kept(tmp_path):
    """A stack holds the bytes of its pieces, one scale for each of them where there was one."""
    model = build("mixtral")
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", "nvfp4")
    pieces = open_stored_model(tmp_path / "quantized")
    found = bs.load(model, tmp_path / "quantized")
    stack = found.get_submodule("model.layers.0.mlp.experts").gate_up_proj
    assert str(stack.format) == "e2m1:group16:(e4m3:block48x*:fp32)"
    hub = "model.layers.0.block_sparse_moe.experts"
    for expert in range(3):
        for half, name in enumerate(("w1", "w3")):
            rows = slice(48 * half, 48 * half + 48)
            own = pieces.read(
                [f"{hub}.{expert}.{name}.weight.{p}" for p in ("codes", "scale", "outer")]
            )
            codes, scale, outer = own.values()
            assert torch.equal(stack.codes[expert, rows], codes)
            assert torch.equal(stack.operand.qparams.scale[expert, rows], scale)
            assert torch.equal(stack.operand.qparams.outer[expert, half], outer[0])


def test_a_base_model_leaves_the_head_out(tmp_path):
    model = build("llama")
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", "mxfp4")
    base = transformers.LlamaModel(model.config)
    with pytest.warns(UserWarning, match="left out, because it is of a head.*: lm_head.weight"):
        bs.load(base, tmp_path / "quantized")
    bs.load(model, tmp_path / "quantized")
    assert (
        differing(base, model.model, list(transformers.LlamaModel(model.config).state_dict())) == []
    )


def test_a_head_needs_its_weight(tmp_path):
    base = build("llama").model
    bs.quantize_directory(save(base, tmp_path / "float"), tmp_path / "quantized", "mxfp4")
    with pytest.raises(FileError, match=r"it lacks lm_head\.weight"):
        bs.load(build("llama"), tmp_path / "quantized")


def test_pieces_of_another_format_are_dequantized(tmp_path):
    """One expert in int8: the stack has no format, so it is made in float, and that is said."""
    model = build("mixtral")
    recipe = bs.Recipe("mxfp4", rules={"*.experts.1.w1": "int8"})
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", recipe)
    with pytest.warns(UserWarning, match="dequantized, because their codes cannot be joined"):
        found = bs.load(build("mixtral", 1), tmp_path / "quantized")
    pieces = dequantized(tmp_path / "quantized", tmp_path / "pieces")
    expected = transformers.MixtralForCausalLM.from_pretrained(pieces, dtype=torch.float32)
    assert differing(found, expected, list(model.state_dict())) == []
    assert (
        type(found.get_submodule("model.layers.0.mlp.experts").gate_up_proj) is torch.nn.Parameter
    )


def test_a_piece_that_is_missing(tmp_path):
    model = build("mixtral")
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", "mxfp4")
    fewer = build("mixtral").config
    fewer.num_local_experts = 4
    with pytest.raises(FileError, match=r"gate_up_proj, made of .* has shape \(3, 96, 32\)"):
        bs.load(transformers.MixtralForCausalLM(fewer), tmp_path / "quantized")


def test_models_of_others_are_left_alone(tmp_path):
    save_file({"a.weight": torch.ones(2, 32)}, tmp_path / "model.safetensors")
    source = open_stored_model(tmp_path)
    assert renamed(torch.nn.Sequential(torch.nn.Linear(32, 2)), source) is source
