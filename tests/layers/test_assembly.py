# SPDX-License-Identifier: BSD-3-Clause
"""What a caller supplies to quantize_: static scales, codes, Before modules; all or nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.apply import swap
from blockscale.layers.before import Rotate, Scale

FMT = "int4:group8:fp32"
CHANNELS = "int8:channel-1:fp32"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(9, 8), nn.Conv1d(8, 6, 3)
        self.one = nn.Linear(6, 16)
        self.same = self.one
        self.tied = nn.Linear(8, 9, bias=False)
        self.tied.weight = self.table.weight
        self.grouped = nn.Conv1d(16, 4, 1, groups=2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.table(ids).movedim(1, -1)).movedim(1, -1)
        return self.grouped(self.one(x).movedim(1, -1))


IDS = torch.arange(10).reshape(2, 5) % 9


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def parts_of(model: nn.Module) -> Any:
    modules = [(name, id(module)) for name, module in model.named_modules()]
    return modules, [(n, t.tolist()) for n, t in model.state_dict().items()]


def test_output_scales_of_every_kind_of_layer() -> None:
    model, plain = net(), net()
    scales = {
        "table": torch.full((1, 8), 0.01),
        "conv": torch.full((1, 6), 0.02),
        "same": torch.full((1, 16), 0.03),  # its other name
    }
    recipe = bs.Recipe("int8", output=CHANNELS)
    ledger = bs.quantize_(model, recipe, output_scales=scales)
    bs.quantize_(plain, "int8")
    assert [ledger[name].details for name in ("table", "one", "tied")] == [
        "static output",
        "static output",
        "",
    ]
    assert ledger["one"].formats + "; static output" in str(ledger)
    x = plain.table(IDS)
    assert torch.equal(model.table(IDS), bs.fake_quantize(x, CHANNELS, scales["table"][None]))
    y = plain.conv(x.movedim(1, -1)).movedim(1, -1)
    expected = bs.fake_quantize(y, CHANNELS, scales["conv"][None])
    assert torch.equal(model.conv(x.movedim(1, -1)).movedim(1, -1), expected)
    assert model.same is model.one


def test_supplied_codes_are_used_as_they_are() -> None:
    model, plain = net(), net()
    torch.manual_seed(1)
    codes = {
        "table": bs.quantize(torch.randn(9, 8), FMT),
        "conv": bs.quantize(torch.randn(6, 24), FMT),
    }
    ledger = bs.quantize_(model, FMT, weights=codes)
    for name, q in codes.items():
        layer = model.get_submodule(name)
        assert torch.equal(layer.weight.codes, q.packed)
        assert torch.equal(layer.weight.tensor.dequantize(), q.dequantize())
    assert torch.equal(model.tied.weight.codes, codes["table"].packed)  # still tied
    assert ledger["table"].bytes_after == codes["table"].nbytes
    kernel = codes["conv"].dequantize().reshape(6, 3, 8).movedim(-1, 1)
    assert torch.equal(model.conv.dequantize_weight(), kernel)
    assert plain.conv.weight.shape == kernel.shape


def test_what_comes_before_changes_the_weight() -> None:
    model, plain = net(), net()
    before = {"one": Scale(torch.tensor([1, 2, 4, 8, 1, 0.5])), "conv": Rotate(8, 8)}
    ledger = bs.quantize_(model, bs.Recipe("int16", "int16"), before=before)
    for name, module in before.items():
        layer, fl = model.get_submodule(name), plain.get_submodule(name)
        assert layer.before.fmt == module.fmt
        stored = fl.weight.detach()
        stored = stored if name == "one" else stored.movedim(1, -1).flatten(1)
        assert torch.equal(
            layer.weight.codes, bs.quantize(module.to_weight(stored), "int16").packed
        )
        torch.testing.assert_close(layer.dequantize_weight(), fl.weight.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(model(IDS), plain(IDS).detach(), rtol=0, atol=1e-3)
    assert ledger["one"].details == "scale before it"
    assert ledger["conv"].details == "rotate:8 before it"
    assert ledger["one"].bytes_after == model.one.weight.nbytes + 16 * 4 + 6 * 4


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("output_scales", {"nine": torch.ones(1, 1)}, "output_scales names 'nine', but the recipe"),
        ("output_scales", {"one": torch.ones(1, 7)}, r"output_scales\['one'\].*shape \(1, 16\)"),
        ("output_scales", {"table": torch.ones(1, 9)}, r"output_scales\['table'\].*\(1, 8\)"),
        ("output_scales", {"conv": torch.ones(1, 8)}, r"output_scales\['conv'\].*\(1, 6\)"),
        (
            "output_scales",
            {"one": torch.ones(1, 16), "same": torch.ones(1, 16)},
            "are the same layer",
        ),
        ("input_scales", {"one": torch.ones(1, 1)}, "gives no such layer an input format"),
        ("weights", {"nine": None}, "weights names 'nine', but the recipe quantizes no such layer"),
        (
            "weights",
            {"tied": None},
            "which shares the codes of a tied layer: pass them for one of the tied layers",
        ),
        ("weights", {"one": torch.ones(16, 6)}, r"weights\['one'\]: expected a QTensor\('int4:gr"),
        ("weights", {"one": bs.quantize(torch.ones(16, 6), "int8")}, "shape=.16, 6.., found QTen"),
        ("weights", {"one": bs.quantize(torch.ones(16, 8), FMT)}, r"found QTensor\('int4:group8"),
        ("before", {"table": Rotate(8, 8)}, "before names 'table', whose input is indices"),
        (
            "before",
            {"one": Rotate(8, 8)},
            r"before\['one'\]: rotate:8 is for 8 features, and the layer has 6",
        ),
        ("before", {"one": nn.Identity()}, r"expected a Before, found an Identity"),
        ("before", {"grouped": Rotate(16, 8)}, r"before\['grouped'\]"),
        ("before", {"tied": Rotate(8, 8)}, "tied"),
    ],
)
def test_what_does_not_fit_changes_nothing(option: str, given: Any, words: str) -> None:
    model = net()
    before = parts_of(model)
    with pytest.raises(ValueError, match=words):
        bs.quantize_(model, bs.Recipe(FMT, output=CHANNELS), **{option: given})
    assert parts_of(model) == before


def test_a_tied_weight_takes_no_before() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

    model = Tied()
    before = parts_of(model)
    with pytest.raises(ValueError, match=r"before\['a'\]: its weight is tied"):
        bs.quantize_(model, FMT, before={"a": Rotate(8, 8)})
    assert parts_of(model) == before


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["build", "swap"])
def test_a_failure_half_way_changes_nothing(
    where: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = net(), 0
    before = parts_of(model)
    owner, name = (torch.nn.Module, "train") if where == "build" else (Net, "__setattr__")
    real = getattr(owner, name)

    def fail(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error
        return real(self, *args)

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(error):
        bs.quantize_(model, FMT)
    monkeypatch.undo()
    assert parts_of(model) == before


def test_swapping_gives_back_what_was_there() -> None:
    model, other = net(), nn.Identity()
    old = swap(model, {"one": other, "same": other})
    assert model.one is model.same is other
    assert swap(model, old)["one"] is other
    assert model.one is model.same is old["one"]
