# SPDX-License-Identifier: BSD-3-Clause
"""Quantized parameters of any module: reads, copies, files, and what is refused."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.linear import QLinear
from blockscale.layers.parameters.hold import Holder, all_held, held, hold, release
from blockscale.layers.store import QWeight
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
    assert list(held(module)) == ["k", "q"]
    assert [name for name, _ in module.named_parameters()] == []
    assert {"q.codes", "q.scale", "k.codes", "k.scale"} < set(module.state_dict())
    expected = X @ held(module)["q"].dequantize() @ held(module)["k"].dequantize().t()
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


def test_another_process_reads_the_pickle(tmp_path: Path) -> None:
    model = nn.Sequential(nn.MultiheadAttention(64, 4, batch_first=True))
    bs.quantize_(model, "int8_channel")
    torch.save(model, tmp_path / "m.pt")
    code = (
        "import sys, torch; m = torch.load(sys.argv[1], weights_only=False); "
        "print(m[0].in_proj_weight.double().sum().item())"
    )
    found = fresh.run(code, tmp_path / "m.pt", check=True).stdout
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
        hold(module, "nothing", held(module)["q"])
    with pytest.raises(RuntimeError, match="an assignment writes to this weight"):
        module.q = nn.Parameter(torch.zeros(64, 64))
    module.q = module.k  # as tie_weights does
    assert held(module)["q"] is held(module)["k"]


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
    assert held(module)["q"] is held(module)["k"]


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
