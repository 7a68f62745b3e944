# SPDX-License-Identifier: BSD-3-Clause
"""The measurements of real models: the twin computes the same, recipes are recipes."""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs
from benchmarks.real_models import packages, recipes, run, smollm2


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_the_twin_computes_the_same_with_other_weights():
    model = llama()
    twin, ids = smollm2.twin(model), torch.randint(0, 99, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(twin(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    changed = {
        name
        for name, value in model.state_dict().items()
        if not torch.equal(value, twin.state_dict()[name])
    }
    left = {name for name in model.state_dict() if name not in changed}
    assert left == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert torch.equal(smollm2.twin(model).model.norm.weight, twin.model.norm.weight)


def test_every_case_is_a_recipe_of_its_own():
    names = [case.name for case in recipes.CASES]
    assert len(set(names)) == len(names) > 30
    for case in recipes.CASES:
        bs.Recipe(weight=case.weight, input=case.input, skip=["lm_head"])


def test_a_line_has_the_figures_of_each_text():
    case = recipes.Case("int8", "int8_channel", None, {"weight": "mse"})
    texts = {"topics": torch.randint(0, 99, (run.SEQUENCES + 2, 8))}
    line = run.measured(case, llama(), texts, "cpu", 8)
    assert json.loads(json.dumps(line)) == line
    assert line["topics"]["loss"]["sequences"] == run.SEQUENCES
    assert line["topics"]["kl"]["mean"] < 0.01


def test_what_was_measured_is_known(tmp_path):
    path = tmp_path / "r.jsonl"
    assert set(packages.held(path)) == set()
    path.write_text('{"case": ""}\n{"case": "a", "topics": {}}\n')
    assert set(packages.held(path)) == {"", "a"}
