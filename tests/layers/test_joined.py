# SPDX-License-Identifier: BSD-3-Clause
"""Layers that servers join share their outer scale: their bits are those of the joined weight."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.apply import disagreeing
from blockscale.layers.assembly import largest

TWO_LEVELS = [
    "nvfp4", "e2m1:group16:e4m3/inv", "int4:group8:(uint8:tensor:fp32):asym", "ternary:group8:e4m3",
    "uint4:group8:(e4m3:tensor:fp16):offset(fp16)", "e2m1:group16:(e4m3:block*x1:fp32)",
]  # fmt: skip


class Attention(nn.Module):
    def __init__(self, bias: bool = False, kdim: int = 32):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 24, bias), nn.Linear(kdim, 8, bias)
        self.v_proj, self.o_proj = nn.Linear(kdim, 8, bias), nn.Linear(24, 32, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q * torch.cat([k, v, k], -1))


class Model(nn.Module):
    def __init__(self, **settings: int):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Attention(**settings) for _ in range(2))
        for attention in self.layers:
            for size, name in ((1.0, "q_proj"), (7.0, "k_proj"), (0.1, "v_proj")):
                attention.get_submodule(name).weight.data *= size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


NAMES = ["q_proj", "k_proj", "v_proj"]


def joined(attention: nn.Module, names: list[str]) -> torch.Tensor:
    return torch.cat([attention.get_submodule(name).weight.detach() for name in names])


def check(attention: nn.Module, whole: bs.QTensor, names: list[str]) -> None:
    """Codes, scales and the outer scale of these layers are the rows of one weight's."""
    weights = [attention.get_submodule(name).qweight for name in names]
    assert torch.equal(torch.cat([w.codes for w in weights]), whole.packed)
    for part in whole.format.parts:
        of_whole = getattr(whole.qparams, part)
        if part == "outer":
            assert all(torch.equal(getattr(w, part), of_whole) for w in weights)
        else:
            assert torch.equal(torch.cat([getattr(w, part) for w in weights]), of_whole)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", TWO_LEVELS)
def test_the_bits_are_those_of_the_joined_weight(fmt: str) -> None:
    model = Model()
    wholes = [bs.quantize(joined(attention, NAMES), fmt) for attention in model.layers]
    alone = bs.quantize(model.layers[0].o_proj.weight.detach(), fmt)
    ledger = bs.quantize_(model, fmt)
    for attention, whole in zip(model.layers, wholes, strict=True):
        check(attention, whole, NAMES)
    assert torch.equal(model.layers[0].o_proj.qweight.codes, alone.packed)
    assert ledger["layers.1.k_proj"].details == "outer scale shared with q_proj, v_proj"
    assert not ledger["layers.1.o_proj"].details


def test_bfloat16_and_poisoned_blocks() -> None:
    model = Model().to(torch.bfloat16)
    model.layers[0].k_proj.weight.data[0, 0] = torch.nan
    whole = bs.quantize(joined(model.layers[0], NAMES), "nvfp4")
    with pytest.warns(UserWarning, match="1 of 256 weights are NaN"):
        bs.quantize_(model, "nvfp4")
    check(model.layers[0], whole, NAMES)


def test_stochastic_rounding_draws_as_it_does_alone() -> None:
    model, other = Model(), Model()
    bs.quantize_(model, "e2m1:group16:e4m3:stochastic", seed=3)
    bs.quantize_(other, "e2m1:group16:e4m3:stochastic", seed=3)
    again = [m.layers[0].q_proj.qweight.codes for m in (model, other)]
    assert torch.equal(*again)
    bs.quantize_(other := Model(), "nvfp4")
    assert torch.equal(other.layers[0].q_proj.qweight.scale, model.layers[0].q_proj.qweight.scale)


def test_it_can_be_turned_off() -> None:
    model = Model()
    alone = bs.quantize(model.layers[0].v_proj.weight.detach(), "nvfp4")
    ledger = bs.quantize_(model, bs.Recipe("nvfp4", fused=False))
    assert torch.equal(model.layers[0].v_proj.qweight.codes, alone.packed)
    assert not ledger["layers.0.v_proj"].details


def test_patterns_join_other_layers() -> None:
    model = Model()
    whole = bs.quantize(joined(model.layers[1], NAMES), "nvfp4")
    for name in NAMES:
        for attention in model.layers:
            attention.add_module(name[0], attention.get_submodule(name))
            delattr(attention, name)
    bs.quantize_(model, bs.Recipe("nvfp4", fused=["*.[qkv]"]))
    check(model.layers[1], whole, ["q", "k", "v"])


def test_partners_in_other_formats_or_in_float_are_named() -> None:
    model = Model()
    whole = bs.quantize(joined(model.layers[0], ["q_proj", "k_proj"]), "nvfp4")
    ledger = bs.quantize_(
        model, bs.Recipe("nvfp4", rules={"*.0.v_proj": "mxfp4"}, skip=["*.1.q_proj"])
    )
    check(model.layers[0], whole, ["q_proj", "k_proj"])
    told = "outer scale not shared with v_proj: not quantized in the same format"
    assert ledger["layers.0.q_proj"].details == f"outer scale shared with k_proj, {told}"
    assert not ledger["layers.0.v_proj"].details  # it has no outer scale
    assert "not shared with q_proj" in ledger["layers.1.k_proj"].details


def test_keys_of_other_inputs_share_among_themselves() -> None:
    model = Model(kdim=16)
    whole = bs.quantize(joined(model.layers[0], ["k_proj", "v_proj"]), "nvfp4")
    bs.quantize_(model, "nvfp4")
    check(model.layers[0], whole, ["k_proj", "v_proj"])


def test_a_weight_that_is_tied_joins_both_groups() -> None:
    model = Model()
    model.layers[1].v_proj.weight = model.layers[0].v_proj.weight
    model.layers[1].q_proj.weight.data *= 50
    bs.quantize_(model, "nvfp4")
    outers = [a.get_submodule(n).qweight.outer for a in model.layers for n in NAMES]
    assert all(torch.equal(outers[0], each) for each in outers)
    assert model.layers[1].v_proj.qweight is model.layers[0].v_proj.qweight


def test_codes_that_are_supplied_stay_and_are_told_of() -> None:
    model = Model()
    given = bs.quantize(model.layers[0].k_proj.weight.detach(), "nvfp4")
    with pytest.warns(UserWarning, match="layers.0.q_proj: its outer scale differs from that of"):
        bs.quantize_(model, "nvfp4", weights={"layers.0.k_proj": given})
    assert torch.equal(model.layers[0].k_proj.qweight.codes, given.packed)
    q, v = (model.layers[0].get_submodule(n).qweight.outer for n in ("q_proj", "v_proj"))
    assert torch.equal(q, v)


def test_a_profile_shares_as_well() -> None:
    model = Model()
    profile = bs.profile("modelopt.nvfp4")
    whole = bs.quantize(joined(model.layers[0], NAMES), profile)
    bs.quantize_(model, bs.Recipe(profile, skip=["*.o_proj"]))
    check(model.layers[0], whole, NAMES)


def test_experts_whose_gate_and_up_are_parameters_of_their_own() -> None:
    """Stacks share it matrix by matrix."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.w1 = nn.Parameter(torch.randn(3, 8, 32))
            self.w3 = nn.Parameter(
                torch.randn(3, 8, 32) * torch.tensor([0.1, 9.0, 1.0])[:, None, None]
            )

    model = nn.ModuleDict({"experts": Experts()})
    floats = copy.deepcopy(model)
    ledger = bs.quantize_(model, bs.Recipe(rules={"*": "nvfp4"}))
    for e in range(3):
        pair = torch.cat([floats["experts"].w1[e], floats["experts"].w3[e]]).detach()
        whole = bs.quantize(pair, "nvfp4")
        held = [model["experts"]._modules[name] for name in ("w1", "w3")]
        assert torch.equal(torch.cat([each.codes[e] for each in held]), whole.packed)
        assert all(float(each.outer[e]) == float(whole.qparams.outer) for each in held)
    assert "outer scale shared with w3" in ledger["experts.w1"].details


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("weight", ["absmax", "mse", "gptq", "hqq", "search", "signround"])
def test_calibrated_weights_share_it_too(weight: str) -> None:
    """Every algorithm; the plain one gives the bits of quantize_. Static inputs are the same."""
    torch.manual_seed(1)
    batches = [torch.randn(4, 32) for _ in range(2)]
    model = Model()
    outers = [bs.quantize(joined(a, NAMES), "nvfp4").qparams.outer for a in model.layers]
    whole = bs.quantize(joined(model.layers[0], NAMES), "nvfp4")
    ledger = bs.calibrate(
        model, batches, bs.Recipe("nvfp4", input="int8:tensor:fp32"), weight=weight, progress=False
    )
    for attention, outer in zip(model.layers, outers, strict=True):
        layers = [attention.get_submodule(name) for name in NAMES]
        assert all(torch.equal(layer.qweight.outer, outer) for layer in layers)
        assert len({float(layer.input.scale) for layer in layers}) == 1
    if weight == "absmax":
        check(model.layers[0], whole, NAMES)
    assert "outer scale shared with q_proj, v_proj" in ledger["layers.0.k_proj"].details
    assert not [entry for entry in ledger if entry.notes]


def test_what_disagrees() -> None:
    one, two = torch.ones(1, 1), torch.full((1, 1), 2.0)
    assert disagreeing({"a": one, "b": one.clone(), "c": None}) == {}
    assert set(disagreeing({"a": one, "b": two})) == {"a", "b"}
    assert float(largest([one, two])) == 2
