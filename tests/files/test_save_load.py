"""bs.save and bs.load: equal bits there and back; test_damaged_files.py has what goes wrong."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.files import save as save_module

IDS = torch.arange(15).reshape(3, 5)
RECIPE = bs.Recipe("mxfp4", "int8_token", rules={"head": {"weight": "nvfp4", "output": "int8"}})


class Net(nn.Module):
    """Each kind of layer; `out` may be tied to `table`; one buffer that is saved, one not."""

    def __init__(self, tied: bool = True):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 64), nn.Linear(64, 64)
        self.norm, self.conv = nn.BatchNorm1d(5), nn.Conv1d(5, 5, 3, padding=1)
        self.out = nn.Linear(64, 40, bias=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("shift", torch.tensor(0.5), persistent=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.conv(self.norm(self.head(self.table(ids) + self.shift))))


def quantized(recipe=RECIPE, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = Net(settings.pop("tied", True)).eval()
    bs.quantize_(model, recipe, **settings)
    return model


def bits(model: nn.Module) -> dict:
    """Types, dtypes, shapes and bytes by name; equality that knows NaN, -0 and uint16."""
    found = {n: type(m) for n, m in model.named_modules(remove_duplicate=False)}
    for n, t in model.state_dict().items():
        data = None if t.is_meta else t.contiguous().reshape(-1).view(torch.uint8).tolist()
        found[n] = (t.dtype, tuple(t.shape), data)
    return found


@pytest.fixture
def path(tmp_path):
    bs.save(quantized(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


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
        assert other.out.weight is other.table.weight
        stored = load_file(file)
        assert "out.weight.codes" not in stored  # tied: written once
        assert torch.equal(stored["table.weight.codes"], model.table.weight.codes)
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


def test_a_layer_by_itself_is_saved_whole_or_refused(tmp_path) -> None:
    layer = quantized().head
    try:
        bs.save(layer, tmp_path / "m")
    except ValueError:
        return
    x, other = torch.randn(3, 64), bs.load(nn.Linear(64, 64), tmp_path / "m")
    assert torch.equal(other(x), layer(x))


class Linear2(nn.Linear):
    pass


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
