# SPDX-License-Identifier: BSD-3-Clause
"""The stage against the quantized layers themselves."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.calibration.block_calls import BlockCall, BlockTask
from blockscale.layers.assembly import Supplied
from blockscale.layers.before.scale import Scale
from blockscale.layers.plan import Plan, plan_layers
from blockscale.layers.store import QInput
from tests.calibration.algorithms.learned.tasks import task_of, weights_of

RECIPES = [
    bs.Recipe(weight="int4:group8:fp32"),
    bs.Recipe(weight="mxfp4", input="mxfp4"),
    bs.Recipe(weight="int8:channel0:fp32", input="int8:token:fp32", output="int8:token:fp32"),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_gives_what_the_quantized_block_gives(recipe: bs.Recipe) -> None:
    task = task_of(recipe)
    stage, call = Stage(task), task.calls[0]
    codes = {name: bs.quantize(w, recipe.weight) for name, w in weights_of(task).items()}
    with stage.quantizing():
        given = stage.run({name: q.dequantize() for name, q in codes.items()}, call)
    bs.quantize_(
        task.module, recipe, weights={n.removeprefix("block."): q for n, q in codes.items()}
    )
    with torch.no_grad():
        assert torch.allclose(task.module(*call.args)[0], given, atol=1e-5)


def test_gradients_reach_the_weights_and_nothing_else() -> None:
    task = task_of(bs.Recipe(weight="int4:group8:fp32", input="int8:token:fp32"))
    stage = Stage(task)
    values = {name: w.requires_grad_() for name, w in weights_of(task).items()}
    with stage.quantizing():
        stage.run(values, task.calls[0]).square().sum().backward()
    assert all(v.grad is not None and bool(v.grad.any()) for v in values.values())
    assert all(p.grad is None and p.requires_grad for p in task.module.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in task.module.modules())


def test_before_modules_and_static_inputs_are_used() -> None:
    task = task_of(bs.Recipe(weight="int8:channel0:fp32", input="int8:tensor:fp32"))
    factor = torch.linspace(0.5, 2, 16)
    static = QInput(bs.parse("int8:tensor:fp32"))
    static.set_scale(torch.tensor([0.05]))
    place = task.places["block.up"]
    place.before, place.input = Scale(factor), static
    stage, call = Stage(task), task.calls[0]
    values = weights_of(task)
    values["block.up"] = place.before.to_weight(values["block.up"])
    with stage.quantizing():
        given = stage.run(values, call)
    x, up, down = call.args[0], task.module.up, task.module.down
    inner = static(x * factor) @ values["block.up"].T + up.bias
    scaled = bs.fake_quantize(inner.relu(), "int8:tensor:fp32")
    assert torch.allclose(given, x + scaled @ down.weight.T + down.bias, atol=1e-5)


def test_convolutions_have_their_channels_second() -> None:
    holder = nn.Module()
    holder.block = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    recipe = bs.Recipe(weight="int8:channel0:fp32", input="int8:channel-1:fp32")
    plans = [p for p in plan_layers(holder, recipe) if isinstance(p, Plan)]
    x = torch.randn(2, 4, 5, 5)
    places = {plan.name: Supplied() for plan in plans}
    task = BlockTask("block", holder.block, plans, places, [BlockCall((x,), {})], [holder.block(x)])
    values = {p.name: p.parameter.detach().movedim(1, -1).flatten(1) for p in plans}
    with Stage(task).quantizing():
        given = Stage(task).run(values, task.calls[0])
    assert given.shape == x.shape
    first = bs.fake_quantize(x.movedim(1, -1), "int8:channel-1:fp32").movedim(-1, 1)
    inner = holder.block[0](first).relu().movedim(1, -1)
    expected = holder.block[2](bs.fake_quantize(inner, "int8:channel-1:fp32").movedim(-1, 1))
    assert torch.allclose(given, expected, atol=1e-5)


def test_a_weight_that_is_elsewhere_is_an_error() -> None:
    task = task_of("int4:group8:fp32")
    other = BlockTask("other", nn.Linear(2, 2), task.plans, task.places, [], [])
    with pytest.raises(ValueError, match=r"block\.up: its weight is not in the model block other"):
        Stage(other)
