# SPDX-License-Identifier: BSD-3-Clause
"""Quantized parameters of any module: reads, copies, files, and what is refused."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import blockscale as bs
from blockscale.layers.held_parameters import hold, release
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import Holder, QWeight, all_held, weights_of
from tests.support import fresh


class Own(nn.Module):
    """Two parameters of its own, and a method that the class has."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.q @ self.k.t()


def own(fmt: str = "mxfp4") -> Own:
    torch.manual_seed(0)
    module = Own()
    for name in ("q", "k"):
        hold(module, name, QWeight.quantize(getattr(module, name), bs.parse(fmt)))
    return module


X = torch.randn(3, 64)


def test_it_is_what_it_was_and_reads_codes() -> None:
    module = own()
    assert isinstance(module, Own)
    assert isinstance(module, Holder)
    assert type(module).__name__ == "Own"
    assert type(module).__qualname__ == "Own"
    assert type(module) is type(own())
    assert list(weights_of(module)) == ["k", "q"]
    assert [name for name, _ in module.named_parameters()] == []
    assert {"q.codes", "q.scale", "k.codes", "k.scale"} < set(module.state_dict())
    expected = X @ weights_of(module)["q"].dequantize() @ weights_of(module)["k"].dequantize().t()
    torch.testing.assert_close(module(X), expected, rtol=1e-5, atol=1e-4)
    outer = nn.Sequential(module, module)
    assert [name for name, _ in all_held(outer)] == ["0.k", "0.q", "1.k", "1.q"]


def test_copies_and_pickles() -> None:
    module, buffer = own(), io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(module), torch.load(buffer, weights_only=False)):
        assert type(other) is type(module)
        assert torch.equal(other(X), module(X))
        assert other.q.codes is not module.q.codes
        other.load_state_dict(module.state_dict())


@pytest.mark.slow
def test_another_process_reads_the_pickle(tmp_path: Path) -> None:
    model = nn.Sequential(nn.MultiheadAttention(64, 4, batch_first=True))
    bs.quantize_(model, "int8_channel")
    torch.save(model, tmp_path / "m.pt")
    code = (
        "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); "
        "print(m[0].in_proj_weight.double().sum().item())"
    )
    found = fresh.run(code, tmp_path / "m.pt", ready=fresh.WITH_OURS, check=True).stdout
    assert float(found) == model[0].in_proj_weight.double().sum().item()


def test_released_it_is_a_float_parameter_again() -> None:
    module = own()
    values = module.q + 0
    release(module, "q")
    assert isinstance(module, Holder)
    assert torch.equal(module.q, values)
    assert isinstance(module._parameters["q"], nn.Parameter)
    release(module, "k")
    assert type(module) is Own


def test_what_is_refused() -> None:
    module = own()
    with pytest.raises(ValueError, match="Own has no parameter 'nothing' to quantize"):
        hold(module, "nothing", weights_of(module)["q"])
    with pytest.raises(RuntimeError, match="an assignment writes to this weight"):
        module.q = nn.Parameter(torch.zeros(64, 64))
    module.q = module.k  # as tie_weights does
    assert weights_of(module)["q"] is weights_of(module)["k"]


def test_casts_follow() -> None:
    module = own().to(torch.bfloat16)
    assert (module.q.dtype, module.q.scale.dtype) == (torch.bfloat16, torch.uint8)
    assert module(X.bfloat16()).dtype == torch.bfloat16


def test_codes_of_another_shape_are_refused() -> None:
    module, other = own(), nn.Module()
    other.q = nn.Parameter(torch.randn(32, 64))
    hold(other, "q", QWeight.quantize(other.q, bs.parse("mxfp4")))
    with pytest.raises(RuntimeError, match="an assignment writes to"):
        module.q = other.q
    module.q = module.k
    assert weights_of(module)["q"] is weights_of(module)["k"]


def with_values_of(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """The float model with the values that the codes of `quantized` stand for."""
    with torch.no_grad():
        for name, module in quantized.named_modules():
            if isinstance(module, nn.MultiheadAttention | QLinear):
                of = model.get_submodule(name)
                for part in ("weight", "in_proj_weight"):
                    if isinstance(getattr(of, part, None), Tensor):
                        getattr(of, part).copy_(getattr(module, part).dequantize())
    return model


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp4"])
def test_fused_attention_of_torch(fmt: str, mode: type) -> None:
    """An encoder whose float layers take torch's fast path gives what their values give there; with
    padding that path makes nested tensors, which quantized layers are never handed."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    quantized = copy.deepcopy(encoder.eval())
    bs.quantize_(quantized, bs.Recipe(weight=fmt))
    assert len(list(all_held(quantized))) == 2
    expected = with_values_of(copy.deepcopy(encoder), quantized)
    x, padded = torch.randn(3, 5, 32), torch.tensor([[0] * 5, [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    for mask in (None, padded.bool()):
        kept = slice(None) if mask is None else ~mask
        with mode():
            y, z, plain = (
                m(x, src_key_padding_mask=mask)[kept] for m in (quantized, expected, encoder)
            )
            try:
                torch.backends.mha.set_fastpath_enabled(False)
                slow = quantized(x, src_key_padding_mask=mask)[kept]
            finally:
                torch.backends.mha.set_fastpath_enabled(True)
        assert torch.equal(y, slow)
        torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(y, plain, rtol=1e-5, atol=1e-5)  # codes were read


class Chain(nn.Sequential):
    """Scales what its children give by a table; its forward is that of nn.Sequential besides."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.table = nn.Parameter(torch.randn(64, 64))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) @ self.table


class Many(nn.ModuleList):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)
        self.table = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return self[-1](x) @ self.table + len(self)


class Named(nn.ModuleDict):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__({f"l{i}": layer for i, layer in enumerate(layers)})
        self.table = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        assert "table" not in self
        for (name, layer), again, value in zip(self.items(), self, self.values(), strict=True):
            assert name == again
            x = layer(x) + 0 * value(x)
        return x @ self.table + len(self) + len(self.keys())


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", [Chain, Many, Named])
def test_it_goes_through_its_children(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(nn.Linear(64, 64), nn.ReLU()))
    x = torch.randn(3, 64)
    ledger = bs.quantize_(model, "mxfp4")
    assert [entry.name for entry in ledger.quantized] == ["0.0" if kind is not Named else "0.l0",
                                                          "0.table"]  # fmt: skip
    plain = nn.Sequential(kind(nn.Linear(64, 64), nn.ReLU()))
    state = {name: getattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
             for name, _ in plain.named_parameters()}  # fmt: skip
    floats = {n: (v.dequantize() if hasattr(v, "fmt") else v).detach() for n, v in state.items()}
    plain.load_state_dict(floats)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-3)
    assert len(model[0]) == 2
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-3)


def test_parts_of_a_chain() -> None:
    model = nn.Sequential(Chain(nn.Linear(64, 64), nn.ReLU()))
    bs.quantize_(model, "mxfp4")
    chain: Any = model[0]
    assert type(chain[-1]) is nn.ReLU
    assert [type(each) for each in chain[1:]] == [nn.ReLU]
    chain.append(nn.Tanh())
    assert [type(each) for each in chain][1:] == [nn.ReLU, nn.Tanh]


# Quantized recurrent layers and cells: torch's own bits for the dequantized weights.

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
    for name, weight in weights_of(model.rnn).items():
        # without gradients: torch sums in another order for weights that have some
        twin._parameters[name].requires_grad_(False).data = weight.dequantize()
    twin._init_flat_weights()
    assert set(weights_of(model.rnn)) == set(weights)
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


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
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


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_one_weight_at_a_time_is_dequantized_and_each_once_a_call(monkeypatch) -> None:
    model, _ = quantized(made("deep lstm"))
    count, plain = [], type(next(iter(weights_of(model.rnn).values()))).dequantize
    monkeypatch.setattr(
        "blockscale.layers.store.QWeight.dequantize",
        lambda weight, *rest: count.append(weight) or plain(weight, *rest),
    )
    model(torch.randn(2, 3, SIZE))
    assert len(count) == len(set(map(id, count))) == 8


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_dropout_acts_in_training() -> None:
    model, twin = quantized(made("deep lstm"))
    model.train(), twin.train()
    x = torch.randn(2, 3, SIZE)
    torch.manual_seed(1)
    y = model(x)
    torch.manual_seed(1)
    assert torch.equal(y, twin(x)[0])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_gradients_reach_the_input_and_biases() -> None:
    model, twin = quantized(made("gru"))
    x = torch.randn(2, 3, SIZE, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    model(x).square().sum().backward()
    twin(other)[0].square().sum().backward()
    assert torch.equal(x.grad, other.grad)
    assert torch.equal(model.rnn.bias_ih_l0.grad, twin.bias_ih_l0.grad)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_torchs_checks_stay() -> None:
    model, _ = quantized(made("lstm"))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        model.rnn(torch.ones(2, 1, SIZE, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="input_size"):
        model.rnn(torch.ones(2, 1, SIZE + 1))
    with pytest.raises(RuntimeError, match="Expected hidden"):
        model.rnn(torch.ones(2, 1, SIZE), (torch.ones(9, 1, HIDDEN),) * 2)
    model.rnn.flatten_parameters()  # what much code calls before each call


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
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


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_casts_follow_the_layer() -> None:
    model, twin = quantized(made("gru"))
    x = torch.randn(2, 3, SIZE, dtype=torch.bfloat16)
    assert torch.equal(model.to(torch.bfloat16)(x), twin.to(torch.bfloat16)(x)[0])


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_memory_of_the_float_weights_is_gone() -> None:
    import weakref

    layer = made("lstm")
    model = Sequences(layer)
    gone = weakref.ref(layer.weight_ih_l0)
    bs.quantize_(model, bs.Recipe(rules={RULE: "int8_channel"}))
    assert gone() is None


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.Module], tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"cell": kind(SIZE, HIDDEN)})
    twin = copy.deepcopy(model["cell"])
    ledger = bs.quantize_(model, bs.Recipe(rules={RULE: "int4:group4:fp32"}), strict=True)
    assert {entry.name for entry in ledger.quantized} == {"cell.weight_ih", "cell.weight_hh"}
    for name, weight in weights_of(model["cell"]).items():
        twin._parameters[name].data = weight.dequantize()
    x = torch.randn(3, SIZE)
    y = model["cell"](x)
    torch.testing.assert_close(y, twin(x), rtol=1e-6, atol=1e-6)
    bs.save(model, tmp_path / "cell.safetensors")
    other = bs.load(nn.ModuleDict({"cell": kind(SIZE, HIDDEN)}), tmp_path / "cell.safetensors")
    same(other["cell"](x), y)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_their_inputs_stay_in_float_and_the_ledger_says_so() -> None:
    model = Sequences(made("lstm"))
    ledger = bs.quantize_(model, bs.Recipe("int8_channel", input="int8"))
    entry = ledger["rnn.weight_ih_l0"]
    assert (entry.weight, entry.input) == ("int8:channel0:fp32", "")
    assert "input left in float" in entry.reason
