# SPDX-License-Identifier: BSD-3-Clause
"""bs.load gives the bits that were saved, into any model that can hold them."""

import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import blockscale as bs
from blockscale.core.parse import CATALOG
from blockscale.files.load import view_for
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import open_stored_model
from tests.support.renaming_hub import MODELS, build, save
from tests.support.renaming_oracle import dequantized, differing
from tests.support.saved import IDS, Net, bits, quantized


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOG)
def test_there_and_back(name: str, tmp_path) -> None:
    for target in (torch.device("cpu"), torch.device("meta")):
        model, file = quantized(name), tmp_path / "m.safetensors"
        bs.save(model, file)
        with target:
            other = Net()
        other.shift = torch.tensor(0.5)  # not in the file
        assert bs.load(other, file) is other
        assert bits(other.eval()) == bits(model)
        assert torch.equal(other(IDS), model(IDS))
        assert other.out.qweight is other.table.qweight
        stored = load_file(file)
        assert "out.weight.codes" not in stored  # tied: written once
        assert torch.equal(stored["table.weight.codes"], model.table.qweight.codes)
        assert file.stat().st_size < 2**13 + sum(t.nbytes for t in stored.values())


def test_inputs_outputs_and_static_scales(tmp_path) -> None:
    scales = {
        "head": torch.full((1, 1), 0.1),
        "conv": bs.choose_qparams(torch.ones(1, 9), "nvfp4")[0],
    }
    inner = "e2m1:tensor:(uint4:tensor:fp32)"
    rules = {"head": {"input": "int8"}, "conv": {"input": inner}}
    scales = {"head": torch.full((1, 1), 0.1)}
    scales["conv"] = bs.choose_qparams(torch.ones(1, 9), inner)[0]
    model = quantized(bs.Recipe("int4", "mxfp8", "int8", rules), input_scales=scales)
    bs.save(model, tmp_path / "m")
    other = bs.load(Net(), tmp_path / "m").eval()
    assert bits(other) == bits(model)
    assert torch.equal(other(IDS), model(IDS))
    assert (other.head.input.static, other.out.input.static) == (True, False)


def test_a_model_of_another_dtype_keeps_the_codes(tmp_path) -> None:
    model, file = quantized("nvfp4"), tmp_path / "m"
    bs.save(model, file)
    other = bs.load(Net().bfloat16(), file).eval()
    model.bfloat16()
    assert bits(other) == bits(model)
    assert torch.equal(other(IDS), model(IDS))


def test_training_flags_gradients_and_hooks_stay(tmp_path) -> None:
    bs.save(quantized(), tmp_path / "m")
    with torch.device("meta"):
        models = [Net().train(), Net().eval()]
    for model in (Net().train(), Net().eval(), *models):
        model.head.bias.requires_grad_(False)
        model.shift = torch.tensor(0.5)
        flags, calls = [m.training for m in model.children()], []
        model.head.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        bs.load(model, tmp_path / "m")
        model(IDS)
        assert calls == [1]
        assert [m.training for m in model.children()] == flags
        assert (model.head.bias.requires_grad, model.conv.bias.requires_grad) == (False, True)


def test_a_model_on_meta_that_the_file_does_not_fill_is_named(tmp_path) -> None:
    """Buffers that are not saved (rotary tables, position ids) hold no data after loading."""
    bs.save(quantized(), tmp_path / "m")
    with torch.device("meta"):
        model = Net()
    with pytest.warns(UserWarning, match="shift"):
        bs.load(model, tmp_path / "m")


TIES = [(a, b, recipe) for a in (True, False) for b in (True, False) for recipe in (
    "int8_channel", bs.Recipe("int8_channel", skip=["out", "table"]))]  # fmt: skip


@pytest.mark.parametrize(("stored_tied", "tied", "recipe"), TIES, ids=str)
def test_ties(stored_tied: bool, tied: bool, recipe, tmp_path) -> None:
    """A model that ties what the file holds apart cannot hold both: none may be lost silently."""
    model, other = quantized(recipe, tied=stored_tied), Net(tied)
    bs.save(model, tmp_path / "m.safetensors")
    if tied and not stored_tied:
        with pytest.raises(bs.FileError, match=r"out\.weight|table\.weight"):
            bs.load(other, tmp_path / "m.safetensors")
        return
    bs.load(other, tmp_path / "m.safetensors")
    assert torch.equal(other.eval()(IDS), model(IDS))


class Linear2(nn.Linear):
    """One that cannot be a quantized layer: they have an attribute of that name themselves."""

    output = None


def test_what_cannot_hold_codes_is_dequantized_and_named(path) -> None:
    model, recipe = Net(), bs.Recipe("mxfp4")
    bs.save(quantized(recipe), path)
    model.head = Linear2(64, 64)
    with pytest.warns(UserWarning, match=r"cannot hold codes: head\.weight"):
        bs.load(model, path)
    assert torch.equal(model.head.weight, quantized(recipe).head.dequantize_weight())
    bs.save(quantized(), path)
    model = Net()
    model.head = Linear2(64, 64)
    with pytest.warns(UserWarning, match="input"):  # its input's format is lost too
        bs.load(model, path)


FORMATS = [
    "mxfp4",
    "nvfp4",
    "int8_channel",
    "nvfp4_e5m3",
    "e2m1:group16:e4m3/four_six",
    "int4:group32:fp32",
]


# a format for each model in the fast tests, all of them in the slow ones
FAST = [(name, FORMATS[i % len(FORMATS)]) for i, name in enumerate(MODELS)]
CASES = [pytest.param(*case) for case in FAST] + [
    pytest.param(name, fmt, marks=pytest.mark.slow)
    for name in MODELS
    for fmt in FORMATS
    if (name, fmt) not in FAST
]


@pytest.mark.some(6)
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.warns(
        UserWarning, match="left out, because it belongs to a head.*: lm_head.weight"
    ):
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
    assert view_for(torch.nn.Sequential(torch.nn.Linear(32, 2)), source) is source
