"""Containers with a parameter of their own: they go through their children and nothing else."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs


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
