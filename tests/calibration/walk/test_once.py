# SPDX-License-Identifier: BSD-3-Clause
"""A block that halts before its layers: what is chosen, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.blocks.find import NotOnceError
from blockscale.calibration.walk.once import Once, stages
from blockscale.layers.plan import Plan, plan_layers
from tests.calibration.walk.networks import CALLS, GROUPS, Block, decoder, ids
from tests.support.walk import quietly


def block() -> tuple[Block, list[Plan]]:
    torch.manual_seed(0)
    model = Block(16).eval()
    plans = [p for p in plan_layers(model, bs.Recipe("int4:group8:fp32")) if isinstance(p, Plan)]
    return model, plans


def test_layers_with_one_input_are_a_stage() -> None:
    model, plans = block()
    found = stages(plans, lambda: model(torch.randn(2, 5, 16)), 1e6)
    names = [[plan.name for plan in stage] for stage in found]
    assert names == [
        ["attention.q", "attention.k", "attention.v"], ["attention.o"], ["feed.up"], ["feed.down"],
    ]  # fmt: skip


def test_bytes_and_calls_that_do_not_fit() -> None:
    model, plans = block()
    x = torch.randn(2, 5, 16)

    def twice() -> None:
        model(x), model(x)

    with pytest.raises(NotOnceError, match="more than the budget"):
        stages(plans, lambda: model(x), 100.0)
    with pytest.raises(NotOnceError, match="called twice or not at all"):
        stages(plans, twice, 1e6)
    with pytest.raises(NotOnceError, match="called twice or not at all"):
        stages(plans, lambda: None, 1e6)


@torch.no_grad()
def test_every_layer_sees_what_the_layers_before_it_leave() -> None:
    """Beside: the block is run again for each stage, its quantized layers' weights put in."""
    (model, plans), (other, _) = block(), block()
    xs = [torch.randn(2, 5, 16) for _ in range(3)]
    found = stages(plans, lambda: model(xs[0]), 1e6)
    seen: dict[str, list[Tensor]] = {plan.name: [] for plan in plans}
    tell: Any = {name: lambda x, _, to=to: to.append(x.clone()) for name, to in seen.items()}
    ended: dict[int, Tensor] = {}

    def value(weight: Tensor, inputs: list[Tensor]) -> Tensor:
        rows = torch.cat([x.reshape(-1, x.shape[-1]) for x in inputs])
        gram = rows.T @ rows / len(rows)
        q = GPTQ().quantize(weight, bs.parse("int4:group8:fp32"), gram, "x")[0]
        return q.dequantize()

    def choose(stage: Any) -> dict[str, nn.Module]:
        made: dict[str, nn.Module] = {}
        for plan in stage:
            layer = nn.Linear(*reversed(plan.parameter.shape))
            layer.bias.copy_(plan.module.bias)
            layer.weight.copy_(value(plan.parameter, seen[plan.name]))
            made[plan.name] = layer
        return made

    before = dict(model.named_modules())
    Once(model, found, tell).run(3, lambda b: ended.update({b: model(xs[b])[0]}), choose)
    assert dict(model.named_modules()) == before
    for stage in found:
        inputs: list[Tensor] = []
        layer = other.get_submodule(stage[0].name)
        hook = layer.register_forward_pre_hook(
            lambda _, args, to=inputs: to.append(args[0].clone())
        )
        for x in xs:
            other(x)
        hook.remove()
        for plan in stage:
            assert all(map(torch.equal, seen[plan.name], inputs))
            weight = other.get_submodule(plan.name).weight
            weight.copy_(value(weight, inputs))  # type: ignore[arg-type, operator]
    for b, x in enumerate(xs):
        assert torch.equal(ended[b], other(x)[0])


@pytest.mark.parametrize("failing", [0, 2])
def test_what_a_batch_raises_ends_all(failing: int) -> None:
    model, plans = block()
    x = torch.randn(2, 5, 16)
    found = stages(plans, lambda: model(x), 1e6)
    before = dict(model.named_modules())

    def run_one(b: int) -> None:
        if b == failing:
            raise KeyError("a batch")
        model(x)

    tell: Any = {plan.name: lambda x, y: None for plan in plans}
    with pytest.raises(KeyError, match="a batch"):
        Once(model, found, tell).run(3, run_one, lambda stage: {})
    assert dict(model.named_modules()) == before


def test_other_orders_are_refused() -> None:
    model, plans = block()
    x = torch.randn(2, 5, 16)
    found = stages(plans, lambda: model(x), 1e6)
    tell: Any = {plan.name: lambda x, y: None for plan in plans}

    def run_one(b: int) -> None:
        if b == 1:
            model.feed(x)
        else:
            model(x)

    def choose(stage: Any) -> dict[str, nn.Module]:
        return {plan.name: plan.module for plan in stage}

    with pytest.raises(NotOnceError, match="different orders"):
        Once(model, found, tell).run(2, run_one, choose)
    with pytest.raises(NotOnceError, match="input of its own"):
        own: Any = lambda b: model.attention.q(x) + model.attention.k(x + 1)  # noqa: E731
        Once(model, found, tell).run(2, own, choose)


# Blocks that are run once: how often, and what is done where that cannot be.

SKIP = ["head", "table"]


def test_a_block_runs_once_for_each_batch_and_once_to_see() -> None:
    model, batches = decoder(8), ids(4)
    ledger = quietly(model, batches, bs.Recipe(GROUPS, skip=SKIP), weight="gptq", sequential="once")
    assert [CALLS[str(i)] for i in range(1, 8)] == [4 + 1] * 7
    assert all("gptq" in each.details for each in ledger if each.status == "quantized")
    assert "needs several runs" not in str(ledger)


@pytest.mark.parametrize(
    ("recipe", "options", "why"),
    [
        (bs.Recipe(GROUPS, "int8:tensor:fp32", skip=SKIP), {}, "static scales need a run"),
        (bs.Recipe(GROUPS, skip=SKIP), {"budget": 30_000.0}, "more than the budget"),
    ],
)
def test_what_cannot_be_is_done_in_two_runs(recipe: bs.Recipe, options: dict, why: str) -> None:
    once, twice = decoder(3), decoder(3)
    ledger = quietly(once, ids(), recipe, weight="gptq", sequential="once", **options)
    quietly(twice, ids(), recipe, weight="gptq", **options)
    assert why in ledger["layers.1.attention.q"].details
    parts = zip(once.state_dict().values(), twice.state_dict().values(), strict=True)
    assert all(bool((x == y).all()) for x, y in parts)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="'layers' or 'once', found 'always'"):
        quietly(decoder(2), ids(), GROUPS, weight="gptq", sequential="always")
