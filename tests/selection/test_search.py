# SPDX-License-Identifier: BSD-3-Clause
"""bs.search on models small enough to try every choice."""

import copy
import itertools
import sys

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.work import Progress
from blockscale.selection.choose import damage
from blockscale.selection.result import StateError
from tests.selection.models import CANDIDATES, Tied, batches, mlp


class Counting(Progress):
    """Counts runs, and stops after some as Ctrl-C does."""

    def __init__(self, most=10**9):
        self.most, self.total, self.before, self.done, self.closed = most, 0, 0, 0, 0

    def start(self, total, done=0):
        self.total, self.before = total, done

    def advance(self, name="", amount=1):
        if self.done >= self.most:
            raise KeyboardInterrupt
        self.done += amount

    def close(self):
        self.closed += 1


def searched(budget=6.0, **options):
    given = {"candidates": CANDIDATES, "points": (), "progress": False} | options
    return bs.search(mlp(), batches(), budget, **given)


@pytest.mark.some(9)
@pytest.mark.parametrize("score", ["fisher", "output", "sqnr"])
@pytest.mark.parametrize("budget", [3.5, 6.0, 8.5])
def test_no_other_choice_has_a_lower_score(score, budget):
    found = searched(budget, score=score)
    total = sum(each.elements for each in found.layers)
    scores = []
    for taken in itertools.product(*(each.candidates for each in found.layers)):
        both = list(zip(taken, found.layers, strict=True))
        if sum(e.bits * own.elements for e, own in both) <= budget * total:
            scores.append(sum(damage(e, score, own) for e, own in both))
    assert found.point.predicted == pytest.approx(min(scores), rel=1e-9)


@pytest.mark.slow
def test_the_recipe_gives_the_bits_and_the_quality_that_are_told():
    found = searched(6.0, points=(3.5, 8))
    assert len(found.points) == 3
    for point in (*found.points, *found.uniform):
        model = mlp()
        ledger = bs.quantize_(model, point.recipe, strict=True)
        layers = [layer for layer in model if not isinstance(layer, nn.ReLU)]
        stored = sum(layer.qweight.nbytes for layer in layers)
        assert point.bits == 8 * stored / sum(layer.qweight.shape.numel() for layer in layers)
        assert ledger.bytes_after == stored + sum(4 * layer.bias.numel() for layer in layers)
        with torch.no_grad():
            pairs = [(mlp()(*batch), model(*batch)) for batch in batches()]
        a, b = (torch.cat(side).double() for side in zip(*pairs, strict=True))
        cosine = nn.functional.cosine_similarity(a, b).mean()
        assert point.quality == pytest.approx(float(cosine), rel=1e-9)
    assert found.point.bits <= 6
    assert found.recipe == found.point.recipe == found.at(6.0)


@pytest.mark.slow
def test_the_model_stays_as_it_is():
    model = mlp().train()
    model[0].weight.requires_grad_(False)
    before, layers = copy.deepcopy(model.state_dict()), list(model)
    bs.search(model, batches(), 6, candidates=CANDIDATES, points=(), progress=False, score="output")
    bs.search(model, batches(), 6, candidates=CANDIDATES, points=(), progress=False)
    assert all(a is b for a, b in zip(model, layers, strict=True))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 5
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("score", ["fisher", "output"])
def test_a_search_that_is_stopped_goes_on(tmp_path, score):
    whole = searched(points=(4, 8), score=score)
    counted = Counting()
    searched(points=(4, 8), score=score, progress=counted)
    assert counted.done == counted.total
    again = None
    for _ in range(50):
        again = Counting(most=5)
        try:
            last = searched(points=(4, 8), score=score, state=tmp_path / "a.json", progress=again)
            break
        except KeyboardInterrupt:
            assert again.closed == 1
    assert again is not None
    assert 0 < again.before < counted.total
    assert last.layers == whole.layers
    assert (last.points, last.uniform, last.point) == (whole.points, whole.uniform, whole.point)
    with pytest.raises(StateError, match="another search"):
        searched(points=(4, 8), score="sqnr", state=tmp_path / "a.json")
    other = searched(5.0, points=(7,), score=score, state=tmp_path / "a.json")
    assert other.point.bits <= 5  # other budgets are no other search


def test_ctrl_c_leaves_the_model_as_it_was():
    model = mlp()
    layers = list(model)
    with pytest.raises(KeyboardInterrupt):
        bs.search(model, batches(), 6, candidates=CANDIDATES, progress=Counting(most=3))
    assert all(a is b for a, b in zip(model, layers, strict=True))


def test_weights_that_are_shared_and_parameters_of_no_layer():
    model, ids = Tied(), torch.tensor([[1, 2, 3]])
    found = bs.search(model, [(ids,)], 6, candidates=CANDIDATES, points=(), progress=False)
    assert [each.names for each in found.layers] == [("table", "head"), ("inner",)]
    ledger = bs.quantize_(model, found.recipe, strict=True)
    assert {e.name for e in ledger.quantized} >= {"table", "inner"}
    assert model.table.qweight is model.head.qweight


def test_inputs_are_quantized_too():
    found = searched(13, candidates=["int8_channel x int8_token", "int8_channel"])
    assert found.score == "output"
    inputs = [found.recipe.decide(each.name)[0].input for each in found.layers]
    best = [min(each.candidates, key=lambda e: max(e.loss, 0)).format for each in found.layers]
    assert [fmt is not None for fmt in inputs] == [" x " in name for name in best]


def test_a_latency_is_kept(monkeypatch):
    def seconds(inputs, found, candidates):
        return {
            (choice.name, name): {"": 9.0, "int8:group16:fp16": 5.0}.get(name, 1.0)
            for choice in found
            for name in ("", *CANDIDATES)
        }

    monkeypatch.setattr(sys.modules["blockscale.selection.steps"], "layer_seconds", seconds)
    free = searched(9.5, latency=100.0)
    assert free.point.seconds == 15.0
    kept = searched(9.5, latency=8.0)
    assert kept.point.seconds == 7.0
    assert sum("int8:" in str(rule.weight) for rule in kept.recipe.rules.values()) == 1
    assert kept.at(9.0, latency=3.0).rules
    with pytest.raises(ValueError, match="seconds"):
        kept.at(9.0, latency=1.0)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        (
            {"score": "hessian"},
            ValueError,
            "unknown score 'hessian'; choose from fisher, output, sqnr",
        ),
        (
            {"score": "fisher", "candidates": ["int8_channel x int8_token"]},
            ValueError,
            "measures errors of weights only",
        ),
        ({"budget": 0}, ValueError, "the budget must be a number of bits per weight"),
        ({"budget": "4.5"}, ValueError, "the budget must be a number of bits per weight"),
        ({"budget": 1.0}, ValueError, "the candidates need"),
        ({"points": (True,)}, ValueError, "the budget must be a number"),
        ({"holdout": []}, ValueError, "batches is empty"),
        ({"objective": "accuracy"}, ValueError, "unknown objective 'accuracy'; choose from"),
    ],
)
def test_what_does_not_fit_is_said(options, error, told):
    with pytest.raises(error, match=told):
        searched(**options)


def test_what_is_no_model_or_no_batches():
    with pytest.raises(TypeError, match=r"search: expected a model \(an nn.Module\), found"):
        bs.search("model.safetensors", batches())
    with pytest.raises(TypeError, match="iterable of batches"):
        bs.search(mlp(), torch.randn(2, 16))
