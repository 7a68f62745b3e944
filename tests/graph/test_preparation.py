# SPDX-License-Identifier: BSD-3-Clause
"""prepare: what is watched, what trains, what is refused before anything is done."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import blockscale as bs
from blockscale.graph.preparation import edges_of
from tests.support import graph_models as models
from tests.support.graph_models import run

STATIC = bs.Recipe("int8_channel", "int8:tensor:fp32")


def test_batches_pass_unchanged():
    model, program, batches = models.bert()
    prepared = bs.graph.prepare(program, STATIC)
    assert torch.equal(run(prepared, batches[0]), run(model, batches[0]))


@pytest.mark.parametrize("transform", ["quarot", "spinquant"])
def test_what_rotates_whole_models_is_refused(transform):
    _, program, _ = models.bert()
    with pytest.raises(ValueError, match=f"{transform!r} rotates .* a graph does not show"):
        bs.graph.prepare(program, STATIC, transform=transform)


@pytest.mark.slow
def test_it_goes_on_watching_after_convert():
    _, program, batches = models.net()
    prepared = bs.graph.prepare(program, STATIC, observer="min_max")
    name = "c3.input.scale"
    run(prepared, batches[0])
    first = bs.graph.convert(prepared).state_dict()[name]
    run(prepared, batches[1])
    both = bs.graph.convert(prepared).state_dict()[name]
    other = bs.graph.prepare(program, STATIC, observer="min_max")
    for batch in batches:
        run(other, batch)
    assert both >= first and torch.equal(both, bs.graph.convert(other).state_dict()[name])


@pytest.mark.slow
def test_calibrate_takes_the_place_of_what_was_seen():
    _, program, batches = models.net()
    prepared = bs.graph.prepare(program, STATIC, observer="min_max")
    run(prepared, [t.flip(1) * 2 for t in batches[1]])
    ledger = bs.calibrate(prepared, batches[:1], progress=False)
    assert ledger.quantized
    other = bs.graph.prepare(program, STATIC, observer="min_max")
    run(other, batches[0])
    states = [bs.graph.convert(each).state_dict() for each in (prepared, other)]
    assert all(torch.equal(t, states[1][n]) for n, t in states[0].items())


def test_what_calibrate_does_not_take():
    prepared = bs.graph.prepare(models.net()[1], STATIC)
    for options in ({"recipe": "int8"}, {"observer": "mse"}, {"weight": "gptq"}):
        with pytest.raises(
            ValueError, match="the recipe, observer, weight algorithm and transform"
        ):
            bs.calibrate(prepared, models.net()[2], **options)
    with pytest.raises(ValueError, match="no recipe: pass one, such as 'int8'"):
        bs.calibrate(nn.Sequential(nn.Linear(2, 2)), [torch.ones(2, 2)])
    trained = bs.graph.prepare(models.net()[1], STATIC, qat=True)
    with pytest.raises(ValueError, match="learns its scales in training"):
        bs.calibrate(trained, models.net()[2])


def test_edges_see_one_pass_where_layers_need_several():
    _, program, batches = models.net()
    recipe = bs.Recipe("int4:group8:fp32", rules={"op:softmax": {"input": "int8:tensor:fp32"}})
    prepared = bs.graph.prepare(program, recipe, weight="gptq", observer="moving_average")
    bs.calibrate(prepared, batches, progress=False)
    (edge,) = edges_of(prepared)
    assert int(edge.observer.samples) == sum(5 * len(batch[0]) for batch in batches)


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:(?s)blockscale.\n  0. scales of its weight were set again")
@pytest.mark.parametrize("learn", [None, pytest.param("steps", marks=pytest.mark.slow)])
def test_training_on_digits(learn):
    """An own training run: accuracy, the switch of modes, and converted equals prepared."""
    data = load_digits()
    x = torch.tensor(data.images).float()[:, None] / 16
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(512, 10),
    ).eval()  # fmt: skip
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, (x[:2],), dynamic_shapes=({0: rows},))
    before = {n: t.clone() for n, t in program.state_dict.items()}
    recipe = bs.Recipe(
        "int4:channel0:fp32",
        "int8:tensor:fp32",
        rules={"op:max_pool2d": {"input": "int8:tensor:fp32"}},
    )
    prepared = bs.graph.prepare(program, recipe, qat=True, learn=learn)
    optimizer = torch.optim.Adam(prepared.parameters(), 2e-3)
    prepared.train()
    epochs, rows = (4, 50) if learn is None else (12, 100)
    for _ in range(epochs):
        for at in torch.randperm(1400).split(rows):
            optimizer.zero_grad()
            nn.functional.cross_entropy(prepared(x[at]), y[at]).backward()
            optimizer.step()
    prepared.eval()
    graph = bs.graph.convert(prepared)
    with torch.no_grad(), bs.use("reference"):
        scores = prepared(x[1400:])
        assert torch.equal(graph(x[1400:]), scores)
        assert torch.equal(bs.graph.fuse(graph)(x[1400:]), scores)
    assert (scores.argmax(1) == y[1400:]).float().mean() > 0.9
    assert all(torch.equal(before[n], t) for n, t in program.state_dict.items())
    assert not [n for n in graph.graph.nodes if "batch_norm" in str(n.target)]
    assert {e.name for e in bs.graph.ledger(graph).quantized} == {"0", "4", "9", "3.max_pool2d"}


def test_a_prepared_graph_for_training_equals_modules_for_training():
    model, program, batches = models.net()
    prepared = bs.graph.prepare(program, STATIC, qat=True)
    other = bs.prepare_qat(copy.deepcopy(model), STATIC)
    with torch.no_grad():
        for each in (prepared, other):
            each.train()
            torch.manual_seed(0)
            each(*batches[0])
            each.eval()
        assert torch.equal(prepared(*batches[1]), other(*batches[1]))


def test_schedules_and_switches_take_a_prepared_graph():
    _, program, batches = models.net()
    recipe = replace(STATIC, rules={"op:softmax": {"input": "int8:tensor:fp32"}})
    prepared = bs.graph.prepare(program, recipe, qat=True)
    prepared.train()
    (edge,) = edges_of(prepared)
    schedule = bs.qat.Schedule(prepared, observe_until=2, freeze_bn_at=2)
    scales, norms = [], []
    for i in range(4):
        prepared(*[(i + 1) * x for x in batches[0]])
        scales.append(prepared.c1.input_quantizer.stored.scale.clone())
        norms.append(prepared.b1.running_mean.clone())
        schedule.step()
    for seen in (scales, norms):
        assert not torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])
    assert int(edge.observer.samples) == 2 * 5 * len(batches[0][0])
    bs.qat.switch(prepared, quantize=False)
    x = torch.randn(3, 5)
    assert torch.equal(edge(x), x)
    bs.qat.switch(prepared, quantize=True)
    assert not torch.equal(edge(x), x)


def test_strict():
    recipe = bs.Recipe("int8_channel", skip=["nowhere"])
    with pytest.raises(bs.SkippedError, match="pattern 'nowhere' matches nothing"):
        bs.graph.prepare(models.net()[1], recipe, strict=True)
    recipe = bs.Recipe("int8_channel", rules={"op:gelu": {"input": "int8"}})
    with pytest.raises(bs.SkippedError, match="pattern 'op:gelu' matches nothing"):
        bs.graph.prepare(models.net()[1], recipe, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.graph.prepare(models.net()[1], "int8_channel", strict=True)


@pytest.mark.slow
def test_weights_of_one_name_in_two_formats():
    """A table and a head that share a weight, in different formats: neither, and it is said."""
    recipe = bs.Recipe("int8_channel", rules={"lm_head": "mxfp4"})
    with pytest.warns(UserWarning, match=r"lm_head: skipped, its weight is tied to .*wte"):
        bs.graph.prepare(models.gpt2()[1], recipe)
    with pytest.raises(bs.SkippedError, match="its weight is tied"):
        bs.graph.prepare(models.gpt2()[1], recipe, strict=True)


@pytest.mark.slow
def test_what_cannot_be_prepared():
    model, program, batches = models.net()
    quantized = copy.deepcopy(model)
    bs.quantize_(quantized, "int8_channel")
    made = torch.export.export(quantized, batches[0])
    with pytest.raises(
        ValueError, match=r"found blockscale.* pass a quantized one to bs.graph.fuse"
    ):
        bs.graph.prepare(made, "int8")
    prepared = bs.graph.prepare(program, "int8_channel")
    with pytest.raises(ValueError, match="found a prepared graph"):
        bs.graph.prepare(prepared, "int8")
    training = torch.export.export(models.Net().train(), batches[0])
    with pytest.raises(ValueError, match=r"exported in training mode, .* export model.eval"):
        bs.graph.prepare(training, "int8", qat=True)
    with pytest.raises(ValueError, match="leave out weight and transform"):
        bs.graph.prepare(program, "int8", qat=True, weight="gptq")
    with pytest.raises(ValueError, match="unknown observer 'largest'"):
        bs.graph.prepare(program, "int8", observer="largest")


@pytest.mark.some(15)
@pytest.mark.parametrize("qat", [False, True])
@pytest.mark.parametrize("name", ["edges", "plans", "methods", "session", "watching", "qat"])
def test_a_layer_may_have_any_name_that_torch_export_takes(name, qat):
    """`edges` of a network of graphs: a prepared graph has no attribute in the way."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))

        def forward(self, x):
            return getattr(self, name)(x)

    x, model = torch.randn(3, 4), Named()
    prepared = bs.graph.prepare(torch.export.export(model, (x,)), "int8_channel", qat=qat)
    prepared(x)
    graph = bs.graph.convert(prepared)
    assert f"{name}.weight.codes" in graph.state_dict()
    weight, bias = (
        bs.fake_quantize(getattr(model, name).weight, "int8_channel"),
        getattr(model, name).bias,
    )
    with bs.use("reference"):
        assert torch.equal(graph(x), nn.functional.linear(x, weight, bias))


def test_a_graph_says_that_it_keeps_its_biases():
    """A preset that corrects them needs the model: the ledger and a warning say what to do."""
    model, x = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)).eval(), torch.randn(2, 3, 6, 6)
    with pytest.warns(UserWarning, match="preset w8a8-static corrects biases, .*keeps its own"):
        prepared = bs.graph.prepare(torch.export.export(model, (x,)), "w8a8-static")
    assert (
        "Call bs.calibrate(model, batches, recipe) on the model"
        in bs.graph.ledger(prepared).notes[0]
    )
    bs.calibrate(prepared, [x], progress=False)
    kept = dict(bs.graph.convert(prepared).named_parameters())["0.bias"]
    assert torch.equal(kept, model[0].bias)
