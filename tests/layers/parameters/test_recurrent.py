# SPDX-License-Identifier: BSD-3-Clause
"""Quantized recurrent layers and cells: torch's own bits for the dequantized weights."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import blockscale as bs
from blockscale.layers.parameters.hold import held

SIZE, HIDDEN = 12, 32
LAYERS = {
    "lstm": lambda: nn.LSTM(SIZE, HIDDEN),
    "deep lstm": lambda: nn.LSTM(
        SIZE, HIDDEN, 2, bidirectional=True, batch_first=True, dropout=0.5
    ),
    "projected lstm": lambda: nn.LSTM(SIZE, 64, 2, proj_size=20, bias=False),
    "both ways, projected": lambda: nn.LSTM(SIZE, 64, proj_size=20, bidirectional=True),
    "gru": lambda: nn.GRU(SIZE, HIDDEN, 2, batch_first=True),
    "gru both ways": lambda: nn.GRU(SIZE, HIDDEN, bidirectional=True, bias=False),
    "rnn": lambda: nn.RNN(SIZE, 2 * HIDDEN, 2, bidirectional=True),
    "relu rnn": lambda: nn.RNN(2 * SIZE, 2 * HIDDEN, nonlinearity="relu"),
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # torch's own
RULE = "*weight_*"  # names them, so that small ones are quantized, too


class Sequences(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rnn = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


def quantized(layer: nn.Module, fmt: str = "int4:group4:fp32") -> tuple[nn.Module, nn.Module]:
    """A layer in a model with quantized weights, and torch's with the same values."""
    model = Sequences(copy.deepcopy(layer)).eval()
    ledger = bs.quantize_(model, bs.Recipe(rules={RULE: fmt}), strict=True)
    weights = [name for name, _ in layer.named_parameters() if name.startswith("weight")]
    assert {f"rnn.{name}" for name in weights} == {entry.name for entry in ledger.quantized}
    twin = copy.deepcopy(layer).eval()
    for name, weight in held(model.rnn).items():
        # without gradients: torch sums in another order for weights that have some
        twin._parameters[name].requires_grad_(False).data = weight.dequantize()
    twin._init_flat_weights()
    assert set(held(model.rnn)) == set(weights)
    return model, twin


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name]()


def same(a, b) -> None:
    if isinstance(a, PackedSequence):
        a, b = tuple(a[:2]), tuple(b[:2])
    if isinstance(a, tuple):
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_states_are_those_of_the_dequantized_weights(name: str) -> None:
    model, twin = quantized(made(name))
    layer, size = model.rnn, twin.input_size
    assert isinstance(layer, type(twin))
    assert type(layer).__name__ == type(twin).__name__
    x = torch.randn(5, 3, size)
    y, state = twin(x)
    same(layer(x), (y, state))
    same(layer(x, state), twin(x, state))  # of the shape of the first state
    same(layer(x[:, 0]), twin(x[:, 0]))
    packed = pack_sequence([x[:3, 0], x[:5, 1], x[:1, 2]], enforce_sorted=False)
    same(layer(packed), twin(packed))


def test_one_weight_at_a_time_is_dequantized_and_each_once_a_call(monkeypatch) -> None:
    model, _ = quantized(made("deep lstm"))
    count, plain = [], type(next(iter(held(model.rnn).values()))).dequantize
    monkeypatch.setattr(
        "blockscale.layers.store.QWeight.dequantize",
        lambda weight, *rest: count.append(weight) or plain(weight, *rest),
    )
    model(torch.randn(2, 3, SIZE))
    assert len(count) == len(set(map(id, count))) == 8


def test_dropout_acts_in_training() -> None:
    model, twin = quantized(made("deep lstm"))
    model.train(), twin.train()
    x = torch.randn(2, 3, SIZE)
    torch.manual_seed(1)
    y = model(x)
    torch.manual_seed(1)
    assert torch.equal(y, twin(x)[0])


def test_gradients_reach_the_input_and_biases() -> None:
    model, twin = quantized(made("gru"))
    x = torch.randn(2, 3, SIZE, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    model(x).square().sum().backward()
    twin(other)[0].square().sum().backward()
    assert torch.equal(x.grad, other.grad)
    assert torch.equal(model.rnn.bias_ih_l0.grad, twin.bias_ih_l0.grad)


def test_torchs_checks_stay() -> None:
    model, _ = quantized(made("lstm"))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        model.rnn(torch.ones(2, 1, SIZE, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="input_size"):
        model.rnn(torch.ones(2, 1, SIZE + 1))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        model.rnn(torch.ones(2, 1, SIZE), (torch.ones(9, 1, HIDDEN),) * 2)
    model.rnn.flatten_parameters()  # what much code calls before each call


@pytest.mark.parametrize("name", ["projected lstm", "gru"])
def test_files_states_copies_and_pickles(name: str, tmp_path) -> None:
    model, _ = quantized(made(name))
    x = torch.randn(2, 3, SIZE)
    y = model(x)
    assert "rnn.weight_ih_l0.codes" in model.state_dict()
    bs.save(model, tmp_path / "a.safetensors")
    again = bs.load(Sequences(LAYERS[name]()).eval(), tmp_path / "a.safetensors")
    with torch.device("meta"):
        empty = Sequences(LAYERS[name]()).eval()
    for other in (
        again,
        bs.load(empty, tmp_path / "a.safetensors"),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert torch.equal(other(x), y)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), y)


def test_casts_follow_the_layer() -> None:
    model, twin = quantized(made("gru"))
    x = torch.randn(2, 3, SIZE, dtype=torch.bfloat16)
    assert torch.equal(model.to(torch.bfloat16)(x), twin.to(torch.bfloat16)(x)[0])


def test_memory_of_the_float_weights_is_gone() -> None:
    import weakref

    layer = made("lstm")
    model = Sequences(layer)
    gone = weakref.ref(layer.weight_ih_l0)
    bs.quantize_(model, bs.Recipe(rules={RULE: "int8_channel"}))
    assert gone() is None


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.Module], tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"cell": kind(SIZE, HIDDEN)})
    twin = copy.deepcopy(model["cell"])
    ledger = bs.quantize_(model, bs.Recipe(rules={RULE: "int4:group4:fp32"}), strict=True)
    assert {entry.name for entry in ledger.quantized} == {"cell.weight_ih", "cell.weight_hh"}
    for name, weight in held(model["cell"]).items():
        twin._parameters[name].data = weight.dequantize()
    x = torch.randn(3, SIZE)
    y = model["cell"](x)
    torch.testing.assert_close(y, twin(x), rtol=1e-6, atol=1e-6)
    bs.save(model, tmp_path / "cell.safetensors")
    other = bs.load(nn.ModuleDict({"cell": kind(SIZE, HIDDEN)}), tmp_path / "cell.safetensors")
    same(other["cell"](x), y)


def test_their_inputs_stay_in_float_and_the_ledger_says_so() -> None:
    model = Sequences(made("lstm"))
    ledger = bs.quantize_(model, bs.Recipe("int8_channel", input="int8"))
    entry = ledger["rnn.weight_ih_l0"]
    assert (entry.weight, entry.input) == ("int8:channel0:fp32", "")
    assert "input left in float" in entry.reason
