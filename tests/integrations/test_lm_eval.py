# SPDX-License-Identifier: BSD-3-Clause
"""Our models in lm-eval's own harness, on a task whose data lies here."""

import copy
import json

import pytest
import torch

import blockscale as bs
from tests.support.cli_model_directory import tiny, tokenizer

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'blockscale[eval]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WORDS = ("the", "a", "on", "for")
TASK = """
task: blockscale_words
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{data}"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["the", "a", "on", "for"]
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("lm_eval")
    path = tokenizer(tiny(folder / "tiny", tie_word_embeddings=False), eos_token="</s>")
    data = folder / "data.jsonl"
    rows = [{"question": f"in {WORDS[i % 4]} in", "answer": (i * 7) % 4} for i in range(24)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = folder / "blockscale_words.yaml"
    task.write_text(TASK.format(data=data))
    return LlamaForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path), task, rows


def by_hand(model, words, rows):
    """Accuracy, each answer's log probability after the question, from the model's own logits."""
    right = 0
    with torch.no_grad():
        for row in rows:
            ids = words(row["question"], return_tensors="pt", add_special_tokens=False)["input_ids"]
            scores = model(ids).logits[0, -1]
            right += (
                int(scores[[words.convert_tokens_to_ids(w) for w in WORDS]].argmax())
                == (row["answer"])
            )
    return right / len(rows)


@pytest.mark.parametrize("weight", [None, "int4:group32:fp16"])
def test_a_task_with_data_of_its_own(setting, weight, monkeypatch, tmp_path):
    from blockscale.integrations.lm_eval import evaluate_tasks

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    model, words, task, rows = setting
    model = copy.deepcopy(model)
    if weight is not None:
        bs.quantize_(model, bs.Recipe(weight=weight))
    found = evaluate_tasks(model, words, [str(task)])
    assert found["blockscale_words"]["acc"] == pytest.approx(by_hand(model, words, rows))


def test_unknown_tasks_and_models_are_named(setting):
    from blockscale.integrations.lm_eval import evaluate_tasks, harness_model

    model, words, _, _ = setting
    with pytest.raises(ValueError, match="unknown task 'no_such_task'; lm-eval has"):
        evaluate_tasks(model, words, ["no_such_task"])
    with pytest.raises(TypeError, match="found a Linear without one"):
        harness_model(torch.nn.Linear(1, 1), words)
