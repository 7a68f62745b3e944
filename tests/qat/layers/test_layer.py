# SPDX-License-Identifier: BSD-3-Clause
"""What every layer in training shares: its class, and its state."""

import copy
import io

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support.qat_models import cnn, train


def skipping(message: str = "blockscale"):
    return pytest.warns(UserWarning, match=message)


def test_layers_keep_what_they_are():
    model = cnn()
    bs.prepare_qat(model, "int8")
    assert isinstance(model[0], nn.Conv2d)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(model[7], nn.Linear)


def test_a_float_state_loads_and_learned_steps_begin_again():
    float_model = cnn()
    model = cnn()
    bs.prepare_qat(model, bs.Recipe("int4:channel0:fp32", "int8"), learn="steps")
    model.load_state_dict(float_model.state_dict())
    expected = bs.prepare_qat(
        copy.deepcopy(float_model), bs.Recipe("int4:channel0:fp32", "int8"), learn="steps"
    )
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x), expected(x))
    for name, parameter in expected.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_a_state_in_another_format_is_refused():
    model, other = cnn(), cnn()
    bs.prepare_qat(model, "int8")
    bs.prepare_qat(other, "int4:channel0:fp32")
    with pytest.raises(
        ValueError,
        match=("int4:channel0:fp32, and the state was saved with int8"),
    ):
        other.load_state_dict(model.state_dict())


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint():
    recipe = bs.Recipe("int4:group16:fp32", "int8", "uint8")
    x = [torch.randn(4, 3, 8, 8) for _ in range(5)]
    with skipping("not learned"):
        model = bs.prepare_qat(cnn(), recipe, learn={"weight": "steps", "output": "steps"})
    train(model, x[:2])
    bs.qat.switch(model, observe=False, freeze_norms=True)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    with skipping("not learned"):
        again = bs.prepare_qat(cnn(), recipe, learn={"weight": "steps", "output": "steps"})
    again.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    assert train(again, x[2:]) == train(model, x[2:])
    copied = copy.deepcopy(again)
    assert copied[0].norm is copied[1]
    assert train(copied, x[:2]) == train(again, x[:2])
