"""Switches, schedules and observers' scales."""

import io

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibrate.observers import make
from tests.qat.models import cnn, train


def layer(model: nn.Module):
    return next(layer for _, layer in bs.qat.schedule.layers(model))


def small(**settings) -> nn.Module:
    return bs.prepare_qat(
        nn.Sequential(nn.Linear(8, 8)), bs.Recipe("int8", "int8", "int8"), **settings
    )


def test_a_schedule_switches_at_its_steps():
    model = bs.prepare_qat(cnn(), bs.Recipe("int8", "int8"))
    schedule = bs.qat.Schedule(model, observe_until=3, quantize_from=1, freeze_bn_at=4)
    seen = []
    for _ in range(5):
        one = layer(model)
        seen.append((one.observing, one.quantizing, one.norm_frozen))
        schedule.step()
    assert seen == [
        (True, False, False),
        (True, True, False),
        (True, True, False),
        (False, True, False),
        (False, True, True),
    ]


def test_a_schedule_resumes():
    model = bs.prepare_qat(cnn(), bs.Recipe("int8", "int8"))
    schedule = bs.qat.Schedule(model, observe_until=2)
    for _ in range(2):
        schedule.step()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "schedule": schedule.state_dict()}, buffer)
    state = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    again = bs.prepare_qat(cnn(), bs.Recipe("int8", "int8"))
    again.load_state_dict(state["model"])
    assert layer(again).observing is False
    other = bs.qat.Schedule(again, observe_until=2)
    other.load_state_dict(state["schedule"])
    assert other.steps == 2
    assert layer(again).observing is False


def test_the_static_scale_is_the_observers():
    model = small(observer="min_max")
    x = [torch.randn(3, 5, 8), 2 * torch.randn(2, 8)]
    other = make("min_max", "int8")
    for each in x:
        model(each)
        other.observe(each)
    found = model[0].input_quantizer.deployed().scale
    assert torch.equal(found, other.qparams().scale)
    assert found.shape == (1, 1)


def test_observers_look_only_in_training_and_only_when_switched_on():
    model = small()
    x = torch.randn(4, 8)
    model(x)
    scale = model[0].input_quantizer.stored.scale
    model.eval()
    model(9 * x)
    model.train()
    bs.qat.switch(model, observe=False)
    model(9 * x)
    assert torch.equal(model[0].input_quantizer.stored.scale, scale)
    bs.qat.switch(model, observe=True, quantize=False)
    assert torch.equal(model(9 * x), nn.functional.linear(9 * x, model[0].weight, model[0].bias))
    assert not torch.equal(model[0].input_quantizer.stored.scale, scale)


def test_without_an_observer_scales_are_dynamic():
    model = small(observer=None)
    x = torch.randn(4, 8)
    expected = nn.functional.linear(
        bs.fake_quantize(x, "int8"), bs.fake_quantize(model[0].weight, "int8"), model[0].bias
    )
    assert torch.equal(model(x), bs.fake_quantize(expected, "int8"))
    assert not bs.convert(model)[0].input.static


def test_freezing_leaves_only_weights_to_train():
    model = bs.prepare_qat(cnn(), bs.Recipe("int8", "int8"), learn={"weight": "steps"})
    x = torch.randn(2, 3, 8, 8)
    model(x)
    bs.qat.freeze(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, [x])
    same = [k for k, v in model.state_dict().items() if torch.equal(v, state[k])]
    assert {"0.weight_quantizer.learned.step", "0.input_quantizer.stored.scale"} <= set(same)
    assert {"1.running_mean", "1.running_var"} <= set(same)
    assert "0.weight" not in same


@pytest.mark.parametrize("observer", ["moving_average:0.5", "min_max"])
def test_observers_of_every_kind_of_spec(observer):
    model = small(observer=lambda fmt: make(observer, fmt))
    model(torch.randn(4, 8))
    assert model[0].output_quantizer.observer.name == observer.partition(":")[0]


def test_the_scale_of_a_backward_pass_is_that_of_its_forward():
    """A second forward must not change what the first one saved."""
    model = small(observer="min_max")
    x = torch.randn(4, 8, requires_grad=True)
    y = model(x)
    inside = y.detach().abs() > -1
    model(50 * torch.randn(4, 8))
    y.sum().backward()
    assert bool(inside.all())
    assert bool(x.grad.isfinite().all())
