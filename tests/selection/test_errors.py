# SPDX-License-Identifier: BSD-3-Clause
"""The errors of layers against bs.compare, and models that stay as they were."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.batches import inference
from blockscale.core.work import Progress
from blockscale.layers.kinds import QLinear
from blockscale.selection import errors as estimate
from blockscale.selection.candidates import DEFAULT, choices, read
from blockscale.selection.errors import (
    Estimate,
    Laboratory,
    bytes_under,
    errors_of,
    float_bytes,
    place,
)
from blockscale.selection.objective import objective
from tests.selection.models import CANDIDATES, Tied, batches, mlp


def laboratory(model):
    return Laboratory(model, batches(), batches()[:1], objective("distance"), Progress())


def test_the_output_of_each_layer_as_compare_measures_it():
    for candidate in read([CANDIDATES[0], "int8_channel x int8_token"]):
        model = mlp()
        found, _ = choices(model, [candidate])
        with inference(model):
            errors, made = errors_of(candidate, found, laboratory(model), None)
        bs.quantize_(quantized := copy.deepcopy(model), candidate.recipe())
        compared = bs.compare(model, quantized, batches())
        for layer in compared:
            assert errors[layer.name] == {"sqnr": layer.isolated.sqnr}
        assert list(made) == ["0", "2", "4"]


def test_the_damage_of_a_layer_alone():
    model, [candidate] = mlp(), read(["int2:group8:fp32"])
    found, _ = choices(model, [candidate])
    with inference(model):
        lab = laboratory(model)
        lab.remember()
        damage = lab.measure(found[1].layers(candidate), lab.batches).damage
    changed = copy.deepcopy(model)
    bs.quantize_(changed, bs.Recipe(candidate.scheme.weight, skip=["0", "4"]))
    expected = objective("distance").measure(
        torch.cat([model(*b) for b in batches()]).detach(),
        torch.cat([changed(*b) for b in batches()]).detach(),
        None,
    )
    assert damage == pytest.approx(expected.damage, rel=1e-9)


def test_what_is_put_in_is_taken_out_whatever_happens():
    model = mlp()
    layers = list(model)
    with pytest.raises(KeyboardInterrupt), place(model, {"0": torch.nn.Identity()}):
        assert isinstance(model[0], torch.nn.Identity)
        raise KeyboardInterrupt
    assert all(a is b for a, b in zip(model, layers, strict=True))


# Estimates against what then happens: bytes exactly, times as they add up.


@pytest.mark.slow
@pytest.mark.parametrize("budget", [3.5, 4.5, 6.0, 8.0])
def test_bytes_are_what_the_ledger_then_counts(budget):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(50, 192), nn.Linear(192, 70), nn.LayerNorm(70), nn.Linear(70, 64)
    )
    found = bs.search(
        model, [(torch.tensor([[1, 2, 3]]),)], budget, candidates=[*DEFAULT, "int4:group7:fp32"],
        points=(), progress=False,
    )  # fmt: skip
    foretold = bytes_under(model, found.layers, found.taken(found.recipe))
    assert float_bytes(model) == sum(p.nbytes for p in model.parameters())
    ledger = bs.quantize_(model, found.recipe)
    assert foretold == ledger.bytes_after


@pytest.mark.slow
def test_bytes_of_a_weight_that_is_shared():
    model = Tied()
    found = bs.search(model, [(torch.tensor([[1]]),)], 6, points=(), progress=False)
    foretold = bytes_under(model, found.layers, found.taken(found.recipe))
    assert foretold == bs.quantize_(model, found.recipe).bytes_after


def test_seconds_are_those_of_the_layers_exchanged(monkeypatch):
    """Each call of a layer takes as many seconds as it has elements of weights and bits in them."""
    assert estimate.exchange(10.0, 6.0, 2.5) == 6.5
    assert estimate.exchange(10.0, 11.0, 2.5) == 2.5
    ran = []

    def race(calls):
        found = {}
        for key, run in calls.items():
            ran.clear()
            run()
            found[key] = float(sum(ran)) or 1000.0
        return found

    monkeypatch.setattr(estimate, "race", race)
    for kind, seconds in ((nn.Linear, 32), (QLinear, 4)):
        forward = kind.forward
        monkeypatch.setattr(
            kind, "forward", lambda self, x, f=forward, s=seconds: (ran.append(s), f(self, x))[1]
        )
    model = mlp()
    candidates = {each.name: each for each in read(["mxfp4"])}
    found, _ = choices(model, read(["mxfp4"]))
    chosen = {"0": candidates["mxfp4"], "4": candidates["mxfp4"]}
    told = estimate.predicted_seconds(model, found, chosen, batches()[0])
    assert told == (4 + 32 + 4, 96.0)


@pytest.mark.slow
def test_what_is_measured_afterwards(monkeypatch):
    monkeypatch.setattr(estimate, "race", lambda calls: {key: len(key) for key in calls})
    model = mlp()
    before = copy.deepcopy(model)
    foretold = Estimate(1000, 3520, 8.0, 5.0, 0.5)
    recipe = bs.Recipe("int8:group16:fp16")
    checked = estimate.check(model, recipe, foretold, batches(), objective("distance"))
    quantized = copy.deepcopy(model)
    ledger = bs.quantize_(quantized, recipe)
    assert (checked.measured.bytes, checked.measured.float_bytes) == (ledger.bytes_after, 3520)
    assert (checked.measured.seconds, checked.measured.float_seconds) == (9, 5)
    with torch.no_grad():
        a, b = (torch.cat([each(*x) for x in batches()]) for each in (before, quantized))
    cosine = float(nn.functional.cosine_similarity(a.double(), b.double()).mean())
    assert checked.measured.quality == pytest.approx(cosine, rel=1e-12)
    errors = checked.errors
    assert errors["bytes"] == 1000 / ledger.bytes_after - 1
    assert errors["seconds"] == 8 / 9 - 1
    assert errors["speedup"] == (5 / 8) / (5 / 9) - 1
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True)
    )
