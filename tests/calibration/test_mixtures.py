# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of transformers, calibrated: every way through the experts is seen."""

import copy
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.layers.store import all_held
from tests.layers.experts.families import FAMILIES, build

pytest.importorskip("transformers")
FEW = ("mixtral", "gpt_oss", "llama4_text")  # the first of each way that families have
WAYS = ("eager", "grouped_mm", "batched_mm")


def batches() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 96, (2, 24), generator=draw)} for _ in range(2)]


def loss(model: Any, floats: Any) -> float:
    with torch.no_grad():
        pairs = [(model(**b).logits, floats(**b).logits) for b in batches()]
    return sum(float((a - b).square().sum()) for a, b in pairs)


def check(kind: str) -> None:
    floats = build(kind)
    only = bs.Recipe(rules={"*.experts": "mxfp4"}) if kind in FEW else bs.Recipe("mxfp4")
    plain, done = copy.deepcopy(floats), copy.deepcopy(floats)
    bs.quantize_(plain, only)
    ledger = bs.calibrate(done, batches(), only, weight="gptq", progress=False)
    assert loss(done, floats) < 0.95 * loss(plain, floats)
    told = {
        entry.name: entry.details
        for entry in ledger.quantized
        if entry.name in dict(all_held(done))
    }
    assert told
    for name, details in told.items():
        if name.endswith("bias"):  # which the rule names, too
            assert details.startswith("plain rounding")
        else:
            assert details.startswith("weight by gptq")
            assert "tokens per expert: least" in details


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEW)
def test_families(kind: str) -> None:
    check(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in FEW])
def test_other_families(kind: str) -> None:
    check(kind)


@pytest.mark.slow
def test_every_way_through_the_experts_sees_the_same_tokens() -> None:
    found = []
    for way in WAYS:
        model = build("qwen3_moe")
        model.set_experts_implementation(way)
        ledger = bs.calibrate(model, batches(), "mxfp4", weight="gptq", progress=False)
        found.append({entry.name: entry.details for entry in ledger if "experts" in entry.name})
    assert found[0] == found[1] == found[2]
    assert "tokens per expert" in found[0]["model.layers.0.mlp.experts.down_proj"]


@pytest.mark.slow
def test_stacks_that_are_read_block_by_block_say_why_they_are_rounded() -> None:
    """With source= the weights of one block are there at a time, and its experts learn nothing."""
    loaded = build("qwen3_moe", num_hidden_layers=3)
    tensors = (*loaded.named_parameters(), *loaded.named_buffers())
    state = {name: tensor.detach().clone() for name, tensor in tensors}
    streamed, plain = copy.deepcopy(loaded).to("meta"), copy.deepcopy(loaded)
    told = bs.calibrate(streamed, batches(), "mxfp4", weight="gptq", progress=False, source=state)
    stack = "model.layers.1.mlp.experts.down_proj"
    assert told[stack].details.startswith("plain rounding: source= reads the weights of one block")
    assert "leave source= out to calibrate experts" in told[stack].details
    bs.quantize_(plain, "mxfp4")
    held, expected = dict(all_held(streamed)), dict(all_held(plain))
    assert torch.equal(held[stack].dequantize(), expected[stack].dequantize())
