"""A model that is prepared and not converted is not saved as if it were converted."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.compat import torch_ao

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def test_prepared_for_training(tmp_path) -> None:
    model = bs.prepare_qat(net(), bs.Recipe("mxfp4", "int8_token"), strict=True)
    for held, name in ((model, "0"), (nn.ModuleDict({"body": model}), r"body\.0")):
        with pytest.raises(
            ValueError, match=rf"^{name} of this model is prepared for training and"
        ):
            bs.save(held, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    bs.save(bs.convert(copy.deepcopy(model)), tmp_path / "m")  # what the error says
    other = bs.load(net(), tmp_path / "m").eval()
    with torch.no_grad():
        assert torch.equal(other(X), model.eval()(X))
    torch.save(model.state_dict(), tmp_path / "checkpoint")  # and the other thing
    again = bs.prepare_qat(net(), bs.Recipe("mxfp4", "int8_token"))
    again.load_state_dict(torch.load(tmp_path / "checkpoint"))
    with torch.no_grad():
        assert torch.equal(again.eval()(X), model(X))


@pytest.mark.parametrize("qat", [True, False])
def test_prepared_graphs(qat: bool, tmp_path) -> None:
    program = torch.export.export(net().eval(), (X,))
    prepared = bs.graph.prepare(program, bs.Recipe("int8", "int8_token"), qat=qat)
    with pytest.raises(ValueError, match=r"a graph that is prepared and not converted"):
        bs.save(prepared, tmp_path / "m")
    with pytest.raises(ValueError, match=r"bs\.graph\.convert it first"):
        bs.save(nn.Sequential(prepared), tmp_path / "m")


def test_converted_graphs(tmp_path) -> None:
    """Their programs can be saved; a file of ours would fit no model."""
    program = torch.export.export(net().eval(), (X,))
    graph = bs.graph.convert(bs.graph.prepare(program, "int8"))
    with pytest.raises(ValueError, match=r"this model is a converted graph, .*torch\.export\.save"):
        bs.save(graph, tmp_path / "m")
    torch.export.save(torch.export.export(graph, (X,)), tmp_path / "m.pt2")  # what the error says
    again = torch.export.load(tmp_path / "m.pt2").module()
    assert torch.equal(again(X), graph(X))


def test_observed_as_torch_ao_does(tmp_path) -> None:
    model = net().eval()
    torch_ao.prepare(model, torch.ao.quantization.get_default_qconfig("x86"))
    model(X)
    with pytest.raises(ValueError, match=r"this model is prepared for calibration and not"):
        bs.save(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    torch_ao.convert(model)
    bs.save(model, tmp_path / "m")
    assert torch.equal(bs.load(net().eval(), tmp_path / "m")(X), model(X))
