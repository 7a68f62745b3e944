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


def test_lines_are_gathered_into_the_page_in_the_place_of_older_ones(tmp_path):
    about = {"when": "2026-11-27", "commit": "abc", "hardware": {"devices": [{"name": "GPU"}]}}
    page = tmp_path / "page.json"
    page.write_text(
        json.dumps({"figures": [{"case": "a", "topics": 1}, {"case": "b", "topics": 2}]})
    )
    lines = [
        {"case": "", "about": about}, {"case": "b", "topics": 3}, {"case": "c", "topics": 4},
        {"case": "d", "error": "out of memory"},
    ]  # fmt: skip
    out = tmp_path / "out.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.gather(out, page) == ["b", "c"]
    more = {"when": "2026-11-27", "commit": "abc", "device": "GPU"}
    assert json.loads(page.read_text())["figures"] == [
        {"case": "a", "topics": 1}, {"case": "b", "topics": 3} | more,
        {"case": "c", "topics": 4} | more,
    ]  # fmt: skip


def test_rows_of_another_model_are_those_of_one_run(tmp_path):
    page, out = tmp_path / "page.json", tmp_path / "out.jsonl"
    old = [{"model": "a", "figures": 1}, {"model": "b", "figures": 2}, {"model": "b", "figures": 3}]
    page.write_text(json.dumps({"when": "then", "figures": old}))
    lines = [
        {"case": "", "about": {"when": "2026-11-27"}}, {"case": "c: z", "error": "out of memory"},
        {"case": "b: y", "model": "b", "figures": 5}, {"case": "c: x", "model": "c", "figures": 6},
    ]  # fmt: skip
    machine = {"devices": [], "processor": "CPU"}
    lines[0]["about"] |= {"commit": "abc", "hardware": machine}
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    twins = tmp_path / "twins.json"
    twins.write_text('{"figures": []}')
    assert run.gather(out, twins) == []  # measured without a GPU, and none of SmolLM2
    assert run.gather_others(out, page) == ["b", "c"]
    assert json.loads(page.read_text())["figures"] == [
        {"model": "a", "figures": 1}, {"model": "b", "figures": 5, "when": "2026-11-27"},
        {"model": "c", "figures": 6, "when": "2026-11-27"},
    ]  # fmt: skip


def test_a_line_is_asked_for_by_one_of_several_words():
    import argparse
    import math

    given = argparse.Namespace(only="e5m3,four_six", leave="awq", until=math.inf)
    names = {case.name for case in run.wanted(recipes.CASES, given, "", {"nvfp4_e5m3"})}
    assert {"nvfp4_e5m3 × nvfp4_e5m3", "e2m1:group16:e4m3/four_six"} < names
    assert not {name for name in names if "awq" in name} | ({"nvfp4_e5m3", "nvfp4"} & names)
