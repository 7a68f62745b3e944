"""bs.load gives the bits that were saved, into any model that can hold them."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.core.catalog import CATALOG
from tests.support.saved import IDS, Net, bits, quantized


@pytest.mark.some(4)
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
