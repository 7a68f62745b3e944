# SPDX-License-Identifier: BSD-3-Clause
"""bs.recommend: bounds that are kept, and arguments that do not fit."""

import copy
import json
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.selection import recommendation as module
from blockscale.selection.candidates import read
from blockscale.selection.recommend import by_weights
from tests.selection.models import CANDIDATES, Tied, batches, mlp


@pytest.fixture(autouse=True)
def _times_that_are_known(monkeypatch):
    """A layer takes a second for each bit that it is stored in; all others of the model three."""

    def seconds(inputs, found, candidates, more=None):
        times = {}
        for choice in found:
            times[choice.name, ""] = 32.0
            for each in candidates:
                if each.name in choice.plans:
                    times[choice.name, each.name] = choice.bits(each) / choice.elements
        return times | {(name, ""): 3.0 + 32.0 * len(found) for name in more or {}}

    def foretold(model, found, chosen, batch):
        bits = [each.bits(chosen[each.name]) / each.elements for each in found]
        return 3.0 + sum(bits), 3.0 + 32.0 * len(found)

    monkeypatch.setattr(module, "predicted_seconds", foretold)
    monkeypatch.setattr(module, "layer_seconds", seconds)
    monkeypatch.setattr(module, "race", lambda calls: dict.fromkeys(calls, 1.0))


def recommended(budget, **options):
    given = {"candidates": CANDIDATES, "progress": False, "batches": batches()} | options
    return bs.recommend(mlp(), budget, **given)


@pytest.mark.slow
def test_bits_are_those_of_the_search():
    found = recommended(6)
    assert (
        found.recipe
        == bs.search(mlp(), batches(), 6, candidates=CANDIDATES, points=(), progress=False).recipe
    )
    assert found.foretold.quality == found.search.point.quality
    bits = [8 * each for each in (found.foretold.bytes, found.foretold.float_bytes)]
    weights = 832
    assert bits[1] - bits[0] == pytest.approx((32 - found.search.point.bits) * weights)
    assert sum(found.formats.values()) == 3
    assert found.blocks == {"group16": 3}
    assert found.rows == {rows: 1 / rows for rows in module.ROWS}
    assert found.batch == 256


@pytest.mark.slow
def test_a_size():
    for size in (600, 800, 1100):
        found = recommended({"size": size})
        model = mlp()
        assert bs.quantize_(model, found.recipe).bytes_after == found.foretold.bytes <= size
    with pytest.raises(ValueError, match="no choice of formats fits the budget"):
        recommended("size=400B")
    with pytest.raises(ValueError, match="what stays in float already takes 192 of 192 bytes"):
        recommended("size=192B")


def test_a_quality_is_kept_with_the_fewest_bits():
    found = recommended({"quality": 0.99})
    every = (*found.search.points, *found.search.uniform)
    enough = [each.bits for each in every if each.quality >= 0.99]
    assert found.search.point.bits == min(enough)
    assert found.foretold.quality >= 0.99
    with pytest.raises(ValueError, match=r"no recipe reaches cosine 1\.5: the best of"):
        recommended({"quality": 1.5})


def test_a_latency():
    """99 s in float, of which 3 are no layer's."""
    free = recommended({"latency": 200.0})
    assert free.foretold.seconds == pytest.approx(
        3 + sum(each["int8:group16:fp16"].bits for each in free.search.layers)
    )
    kept = recommended({"latency": 19.0})
    assert kept.foretold.seconds <= 19.0 + 1e-9
    assert kept.foretold.float_seconds == 99.0
    assert kept.foretold.speedup == 99.0 / kept.foretold.seconds
    model = mlp()
    bs.quantize_(model, kept.recipe)
    with torch.no_grad():
        a, b = (torch.cat([each(*x) for x in batches()]) for each in (mlp(), model))
    cosine = float(torch.nn.functional.cosine_similarity(a.double(), b.double()).mean())
    assert kept.foretold.quality == pytest.approx(cosine, rel=1e-9)
    with pytest.raises(ValueError, match=r"takes 3\.000000 s of the float model's 99\.000000 s"):
        recommended({"latency": 2.0})


def test_weights_alone():
    found = recommended(6, batches=None)
    assert found.search.points == ()
    told = found.foretold
    assert (told.seconds, told.quality, told.speedup) == (None, None, None)
    model = mlp()
    assert bs.quantize_(model, found.recipe).bytes_after == told.bytes
    for layer in found.search.layers:
        weight = mlp().get_submodule(layer.name).weight.detach()
        for error in layer.candidates:
            noise = (weight - bs.fake_quantize(weight, error.format)).double()
            sqnr = 10 * torch.log10(weight.double().square().sum() / noise.square().sum())
            assert error.sqnr == pytest.approx(float(sqnr), rel=1e-9)


def test_every_claim_has_its_source(tmp_path):
    for found in (recommended(6), recommended(6, batches=None)):
        assert all(claim.text and len(claim.source.split()) >= 4 for claim in found.claims)
        text = str(found)
        assert f"{found.foretold.bytes} bytes" in text
        assert "AMD" in text or bs.hardware().processor in text
        found.save(tmp_path / "a.json")
        data = json.loads((tmp_path / "a.json").read_text())
        assert bs.Recipe.from_dict(data["recipe"]) == found.recipe
        assert data["foretold"]["bytes"] == found.foretold.bytes
    assert "a batch will take" in str(recommended(6))


def test_the_model_stays_as_it_is():
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    found = bs.recommend(
        model, 6, batches=[(torch.tensor([[1, 2]]),)], candidates=CANDIDATES, progress=False
    )
    assert found.check(model, [(torch.tensor([[1, 2]]),)]).errors["bytes"] == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_what_does_not_fit_is_said():
    other = replace(bs.hardware(), processor="PDP-11")
    with pytest.raises(ValueError, match="hardware describes 'PDP-11', but this machine has '"):
        recommended(6, hardware=other)
    with pytest.raises(ValueError, match="a budget of latency needs batches to measure on: call"):
        recommended({"latency": 1.0}, batches=None)
    with pytest.raises(ValueError, match="a budget of quality needs batches to measure on: call"):
        recommended("quality=0.9", batches=None)
    with pytest.raises(TypeError, match=r"recommend: expected a model \(an nn.Module\), found"):
        bs.recommend({}, 6)
    assert recommended(6, hardware=bs.hardware()).recipe == recommended(6).recipe


def test_no_points_and_no_quality():
    found = by_weights(mlp(), read(CANDIDATES), ["0"])
    assert [each.name for each in found.layers] == ["2", "4"]
    assert (found.points, found.uniform, found.score) == ((), (), "sqnr")
    assert found.at(6.0).rules
    assert list(found.left) == ["0"]


def test_exact_weights_have_no_error():
    model = mlp()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    found = by_weights(model, read(["int8_channel"]), ())
    assert found.layers[0].candidates[0].sqnr > 100
