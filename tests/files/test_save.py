# SPDX-License-Identifier: BSD-3-Clause
"""bs.save writes a whole file or none, which any reader of safetensors opens."""

import copy

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.files import save as save_module
from tests.support.saved import Net, bits, quantized


def test_a_layer_by_itself_is_saved_whole_or_refused(tmp_path) -> None:
    layer = quantized().head
    try:
        bs.save(layer, tmp_path / "m")
    except ValueError:
        return
    x, other = torch.randn(3, 64), bs.load(nn.Linear(64, 64), tmp_path / "m")
    assert torch.equal(other(x), layer(x))


def test_paths_that_cannot_be_written(path, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"is a directory: name the file to write, e\.g\."):
        bs.save(quantized(), tmp_path)
    with pytest.raises(ValueError, match="gone is not a directory: create it first"):
        bs.save(quantized(), tmp_path / "gone" / "model")
    with pytest.raises(ValueError, match="holds no data"):
        bs.save(quantized().to("meta"), tmp_path / "meta")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_any_safetensors_reader_reads_it(path) -> None:
    stored, model = load_file(path), quantized()
    ours = ("out.weight", "_extra_state")  # written once with `table`, and in the metadata
    state = {n: t for n, t in model.state_dict().items() if not any(o in n for o in ours)}
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[n], t) for n, t in state.items())


def test_two_saves_are_the_same_bytes(tmp_path) -> None:
    """safetensors orders metadata anew at each call: of eight files some would differ."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    model.register_buffer('a "quoted" \u00fc\n\x01 \x7f name', torch.ones(1))
    bs.quantize_(model, "mxfp4")
    files = [tmp_path / f"{i}.safetensors" for i in range(8)]
    for file in files:
        bs.save(model, file)
    assert len({file.read_bytes() for file in files}) == 1
    assert load_file(files[0]).keys() == model.state_dict().keys() - {"0.weight._extra_state"}


def test_two_writers_do_not_meet(path, monkeypatch) -> None:
    """Threads, or ranks whose containers all count from process 1, on one shared disk."""
    write, others = save_module.save_file, []

    def slow(tensors, filename, metadata) -> None:
        write(tensors, filename, metadata)
        if not others:
            others.append("another, from beginning to end")
            bs.save(quantized("int8"), path)

    monkeypatch.setattr(save_module, "save_file", slow)
    bs.save(quantized(), path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert bits(bs.load(Net(), path).eval()) == bits(quantized())


def test_others_may_read_what_the_umask_lets_them(path, tmp_path) -> None:
    """safetensors writes for its owner alone, `blockscale quantize` as every program does."""
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_write_that_fails_leaves_what_was_there(error, there, path, monkeypatch) -> None:
    old = path.read_bytes()
    if not there:
        path.unlink()

    def fail(tensors, filename, metadata) -> None:
        filename.write_bytes(old[:100])
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(save_module, "save_file", fail)
        bs.save(quantized("int8"), path)
    assert [(f, f.read_bytes()) for f in path.parent.iterdir()] == [(path, old)] * there
    bs.save(quantized("int8"), path)
    assert bits(bs.load(Net(), path).eval()) == bits(quantized("int8"))


def test_a_disk_that_fails_is_an_os_error(tmp_path, monkeypatch):
    """The safetensors library has an error of its own for it."""

    def fails(*_):
        raise SafetensorError("Error while serializing: I/O error")

    monkeypatch.setattr(save_module, "save_file", fails)
    with pytest.raises(OSError, match=r"net.safetensors cannot be written: Error while serial"):
        bs.save(quantized(), tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


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
