# SPDX-License-Identifier: BSD-3-Clause
"""When observers observe, when quantization begins, when batch norms are frozen."""

import io

import torch
from torch import nn

import blockscale as bs
from tests.support.qat_models import cnn, train


def layer(model: nn.Module):
    return next(layer for _, layer in bs.qat.schedule.layers(model))


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
