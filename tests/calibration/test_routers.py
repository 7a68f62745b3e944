# SPDX-License-Identifier: BSD-3-Clause
"""Routers of a quantized mixture against those of the float one."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.routers import RouterComparison, router_lines, routers

IDS = [{"input_ids": torch.randint(2, 96, (2, 9))} for _ in range(2)]


@pytest.fixture(scope="module")
def mixture() -> nn.Module:
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=32, head_dim=16,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def chosen(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """What each layer's router chooses, by hooks of the test's own."""
    found: list[Tensor] = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda module, args, output: found.append(output[2]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(**batch)
    for hook in hooks:
        hook.remove()
    return found


def test_agreement_is_counted_by_choices(mixture: nn.Module) -> None:
    """In whatever order, over all batches; the table and the JSON have it."""
    model = copy.deepcopy(mixture)
    bs.quantize_(model, "int2:group16:fp32")
    found = bs.compare(mixture, model, IDS)
    assert [each.name for each in found.routers] == [f"model.layers.{i}.mlp.gate" for i in (0, 1)]
    for i, each in enumerate(found.routers):
        same, whole = [], []
        for batch in IDS:
            a, b = chosen(mixture, batch)[i].tolist(), chosen(model, batch)[i].tolist()
            same += [len(set(x) & set(y)) for x, y in zip(a, b, strict=True)]
            whole += [set(x) == set(y) for x, y in zip(a, b, strict=True)]
        assert (each.tokens, each.top) == (36, 3)
        assert each.choices == sum(same) / (36 * 3) < 1
        assert each.whole == sum(whole) / 36
    assert found.sorted("name").routers == found.routers
    assert json.loads(found.to_json())["routers"][0]["tokens"] == 36
    assert "% of the experts that 2 routers choose are those of the float model; least" in str(
        found
    )


@pytest.mark.slow
def test_a_small_budget_counts_each_token_once(mixture: nn.Module) -> None:
    """Batches go through the models several times then."""
    model = copy.deepcopy(mixture)
    bs.quantize_(model, "int2:group16:fp32")
    small = bs.compare(mixture, model, IDS, budget=1)
    assert small.routers == bs.compare(mixture, model, IDS).routers


def test_models_without_routers_say_nothing() -> None:
    """A layer called `gate` that chooses nothing is none that is seen."""
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(32, 32))
    model.add_module("gate", nn.Linear(32, 8))
    other = copy.deepcopy(model)
    bs.quantize_(other, "int8")
    assert [pair.name for pair in routers(model, other)] == ["gate"]
    found = bs.compare(model, other, [torch.randn(4, 32)])
    assert found.routers == ()
    assert "routers" not in found.to_dict()
    assert "routers" not in str(found)


def test_the_line_names_the_least() -> None:
    rows = [RouterComparison("a", 10, 2, 0.95, 0.9), RouterComparison("b", 30, 2, 0.75, 0.5)]
    (line,) = router_lines(rows)
    assert line.startswith("routers: 80.00 % of the experts that 2 routers choose")
    assert line.endswith("least b, 75.00 %")
    assert router_lines([]) == []
