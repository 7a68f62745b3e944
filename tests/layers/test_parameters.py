# SPDX-License-Identifier: BSD-3-Clause
"""Which parameters of no layer are quantized, and what the ledger and files say of them."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers import assembly, parameters
from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held


class Mixed(nn.Module):
    """Parameters of every kind that the defaults know, a tie, and torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.proj = nn.Parameter(torch.randn(64, 64) / 8)
        self.same = self.proj
        self.pos_embed, self.tiny = (
            nn.Parameter(torch.randn(1, 40, 64)),
            nn.Parameter(torch.ones(3, 3)),
        )
        self.wide = nn.Parameter(torch.randn(64, 64).double())
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x) @ self.proj @ self.same.t() + self.pos_embed[:, : x.shape[1]]
        return self.encoder(self.attention(x, x, x, need_weights=False)[0])


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


X = torch.randn(2, 5, 64)


def quiet(model: nn.Module, recipe: object, **more: object) -> bs.Ledger:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bs.quantize_(model, recipe, **more)


def test_the_ledger_says_of_each() -> None:
    model = mixed()
    before = sum(p.nbytes for p in model.parameters())
    ledger = quiet(model, "mxfp8")
    told = {e.name: (e.status, e.reason) for e in ledger}
    quantized = (
        "proj", "attention.in_proj_weight", "attention.out_proj", "fc",
        "encoder.layers.0.self_attn.in_proj_weight", "encoder.layers.0.linear1",
    )  # fmt: skip
    assert {told[name][0] for name in quantized} == {"quantized"}
    assert told["pos_embed"] == (
        "kept", "a position table, kept in float by default: name it in a rule to quantize it"
    )  # fmt: skip
    assert told["tiny"][1].startswith("a small table")
    assert told["wide"][0] == "skipped"
    assert "float64" in told["wide"][1]
    assert [name for name, _ in all_held(model)][:2] == ["proj", "same"]
    assert dict(all_held(model))["same"] is dict(all_held(model))["proj"]
    held = sum(t.nbytes for t in model.parameters()) + sum(
        b.nbytes for n, b in model.named_buffers() if "extra" not in n
    )
    assert (ledger.bytes_before, ledger.bytes_after) == (before, held)


def test_rules_decide_over_defaults() -> None:
    model = mixed()
    recipe = bs.Recipe("mxfp8", rules={"pos_embed": "mxfp8", "proj": None, "same": None})
    told = {e.name: e.status for e in quiet(model, recipe)}
    assert (told["pos_embed"], told["proj"]) == ("quantized", "kept")
    other = {e.name: e for e in quiet(mixed(), bs.Recipe("mxfp8", skip=["same"]))}
    assert other["proj"].status == "skipped"
    assert "proj, same share one parameter" in other["proj"].reason


def test_outputs_are_those_of_the_dequantized_and_files_bring_them_back(tmp_path: Path) -> None:
    """torch's fused attention would read weights past our layers: it is not taken."""
    model = mixed()
    twin = copy.deepcopy(model)
    quiet(model, "mxfp8")
    for name, weight in all_held(model):
        twin.get_parameter(name).data = weight.dequantize()
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            twin.get_submodule(name).weight.data = layer.dequantize_weight()
    for context in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with context:
            y = model(X)
            torch.testing.assert_close(y, twin(X), rtol=1e-4, atol=1e-4)
    bs.save(model, tmp_path / "m.safetensors")
    again = bs.load(mixed(), tmp_path / "m.safetensors")
    assert torch.equal(again(X), model(X))
    assert dict(all_held(again)).keys() == dict(all_held(model)).keys()


def test_quantized_inputs_are_not_passed_by() -> None:
    """In torch's fused paths no layer is called, so nothing would quantize its input."""
    coarse, fine = mixed(), mixed()
    quiet(coarse, bs.Recipe("int8_channel", "int2:token:fp32"))
    quiet(fine, "int8_channel")
    with torch.no_grad():
        assert (coarse.encoder(X) - fine.encoder(X)).abs().max() > 0.05
    ledger = quiet(mixed(), bs.Recipe("int8_channel", "int8_token"))
    entry = ledger["attention.out_proj"]
    assert (entry.weight, entry.input) == ("int8:channel0:fp32", "")
    assert "computes with its weight without calling it" in entry.notes[0]


@pytest.mark.parametrize("broken", ["hold", "quantized"])
def test_nothing_has_changed_when_something_fails(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mixed()
    before, kinds = model(X), {n: type(m) for n, m in model.named_modules()}
    calls = []
    real = getattr(parameters, broken)

    def fails(*args: object) -> object:
        calls.append(args)
        if len(calls) == 3:
            raise MemoryError("planted")
        return real(*args)

    module = parameters if broken == "hold" else assembly
    monkeypatch.setattr(module, broken, fails)
    with pytest.raises(MemoryError):
        quiet(model, "mxfp8")
    assert {n: type(m) for n, m in model.named_modules()} == kinds
    assert torch.equal(model(X), before)
