# SPDX-License-Identifier: BSD-3-Clause
"""Tokens with a meaning, against what llama.cpp's own `SpecialVocab` makes of the same files."""

import json
from pathlib import Path

import pytest

from blockscale.export.writers.gguf_files.special_tokens import special_keys
from blockscale.export.writers.gguf_files.vocabulary import Vocabulary

TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "[CLS]", "[SEP]", "<|im_end|>", "<stop>", "<other>"]
A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}


def token(text: str) -> dict:
    return {"SpecialToken": {"id": text, "type_id": 0}}


def template(before: list[str], behind: list[str]) -> dict:
    first, last = [token(t) for t in before], [token(t) for t in behind]
    end = [] if before and not behind else last
    pair = [*first, A, *(end or first), B, *last]
    return {"type": "TemplateProcessing", "single": [*first, A, *last], "pair": pair}


def keys(folder: Path, post: object, told: dict, **configs: dict) -> tuple[dict, list[str]]:
    """What is written, under short names: {"bos": its token, "+bos": whether it is added}."""
    vocabulary = Vocabulary(16)
    for number, text in enumerate(TOKENS):
        vocabulary.add(number, text, special=True)
    for name, content in ({"tokenizer_config": told} | configs).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    found, notes = special_keys(folder, vocabulary, {"post_processor": post})
    short = {}
    for key, value in found.items():
        name = key.removeprefix("tokenizer.ggml.")
        if name.startswith("add_"):
            short["+" + name.removeprefix("add_").removesuffix("_token")] = value.value
        else:
            short[name.removesuffix("_token_id")] = value.value
    return short, notes


# What gguf-py/gguf/vocab.py of llama.cpp b11434 made of these files (`special_token_ids` and
# `add_special_token` of `SpecialVocab(folder, n_vocab=16)`). It leaves out what is not added, which
# is false here, since llama.cpp would choose by the name of the cuts, and keeps `cls`, which has no
# key
@pytest.mark.parametrize(
    ("post", "told", "config", "expected"),
    [
        (template(["<s>"], []), {"bos_token": "<s>", "eos_token": {"content": "</s>"}}, {},
         {"bos": 1, "eos": 2, "+bos": True, "+eos": False, "+sep": False}),
        (template([], []), {}, {"bos_token_id": 1, "eos_token_id": 2},
         {"bos": 1, "eos": 2, "+bos": False, "+eos": False}),
        ({"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]},
         {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}, {},
         {"bos": 1, "eos": 2, "seperator": 2, "+bos": True, "+eos": True, "+sep": True}),
        (template(["[CLS]"], ["[SEP]"]), {"cls_token": "[CLS]", "sep_token": "[SEP]",
         "unk_token": "<unk>", "pad_token": "<pad>"}, {},
         {"bos": 4, "eos": 5, "unknown": 0, "seperator": 5, "padding": 3, "+bos": True,
          "+eos": True, "+sep": False}),
        (template([], ["</s>"]), {"eos_token": "</s>", "unk_token": "<unk>"}, {},
         {"eos": 2, "unknown": 0, "+bos": False, "+eos": True, "+sep": False}),
        (template([], ["</s>"]), {"eos_token": "<|im_end|>", "bos_token": "<s>"}, {},
         {"bos": 1, "eos": 2, "eot": 6, "+bos": False, "+eos": True, "+sep": False}),
        (None, {"bos_token": "<s>", "eos_token": "</s>"}, {},
         {"bos": 1, "eos": 2, "+bos": False, "+eos": False}),
    ],
    ids=["llama", "config alone", "roberta", "bert", "t5", "eos and eot", "nothing added"],
)  # fmt: skip
def test_as_llama_cpp_has_it(
    post: object, told: dict, config: dict, expected: dict, tmp_path: Path
) -> None:
    found, notes = keys(tmp_path, post, told, config=config)
    assert found == expected and not notes


def test_what_tokenizer_config_says_fills_up(tmp_path: Path) -> None:
    """As llama.cpp b11434: what a template has is added (as by transformers 5.23), else what the
    keys say. Where the two differ, it is said."""
    told = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}
    found, notes = keys(tmp_path, template(["<s>"], []), told)
    assert (found["+bos"], found["+eos"]) == (True, True)
    assert notes == [
        "tokenizer_config.json has add_bos_token: false, and the post_processor of tokenizer.json "
        "adds one: llama.cpp adds it",
        "tokenizer_config.json has add_eos_token: true, and the post_processor of tokenizer.json "
        "does not add one: llama.cpp adds it",
    ]
    found, notes = keys(tmp_path, None, told | {"add_eos_token": False})
    assert (found["+bos"], found["+eos"]) == (False, False) and not notes


def test_names_in_configurations(tmp_path: Path) -> None:
    """In this order: tokenizer_config, config, its text_config, generation_config."""
    last = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    found, _ = keys(tmp_path, None, {}, generation_config=last)
    assert (found["bos"], found["eos"], found["padding"]) == (1, 2, 3)
    inner = {"text_config": {"bos_token_id": 4, "eos_token_id": None}}
    found, _ = keys(tmp_path, None, {}, config=inner, generation_config=last)
    assert (found["bos"], found["eos"]) == (4, 2)
    found, _ = keys(tmp_path, None, {"eos_token": "[SEP]"}, config={"eos_token_id": 5})
    assert found["eos"] == 5 and "eot" not in found
    found, _ = keys(tmp_path, None, {}, config={"eos_token_id": 99}, generation_config={})
    assert "eos" not in found  # no row of the embedding


def test_every_token_that_ends_an_answer(tmp_path: Path) -> None:
    """llama.cpp knows <|im_end|> by its text; others become eot and eom, and one more is said."""
    ends = {"eos_token_id": [2, 6, 7, 8]}
    found, notes = keys(tmp_path, None, {}, generation_config=ends)
    assert (found["eos"], found["eot"], found["eom"]) == (2, 7, 8) and not notes
    found, notes = keys(tmp_path, None, {}, generation_config={"eos_token_id": [2, 7, 8, 5]})
    assert notes == [
        (
            "answers also end with [SEP], for which GGUF has no key: pass them to llama.cpp "
            "as stop words"
        )
    ]


def test_more_tokens_than_llama_cpp_adds(tmp_path: Path) -> None:
    found, notes = keys(tmp_path, template(["[CLS]", "<s>"], []), {"eos_token": "</s>"})
    assert found["bos"] == 4 and found["+bos"]
    assert notes == [
        (
            "its tokenizer adds [CLS] <s> before a text, and llama.cpp adds only [CLS]: "
            "write the others into the prompt"
        )
    ]


def test_without_a_tokenizer_json_the_choice_stays_llama_cpps(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"add_eos_token": true}')
    found, notes = special_keys(tmp_path, Vocabulary(4), None)
    assert {k: v.value for k, v in found.items()} == {"tokenizer.ggml.add_eos_token": True}
    assert not notes


def test_templates_of_conversations(tmp_path: Path) -> None:
    """As `GGUFWriter.add_chat_template` names them (gguf-py/gguf/gguf_writer.py)."""
    listed = [{"name": "default", "template": "a"}, {"name": "tool-use", "template": "b"}]
    found, _ = special_keys_of(tmp_path, {"chat_template": listed})
    assert found == {
        "tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b",
        "tokenizer.chat_templates": ["tool_use"],
    }  # fmt: skip
    (tmp_path / "chat_template.json").write_text('{"chat_template": "c"}')
    assert special_keys_of(tmp_path, {})[0] == {"tokenizer.chat_template": "c"}
    (tmp_path / "chat_template.jinja").write_text("d")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("e")
    assert special_keys_of(tmp_path, {"chat_template": "a"})[0] == {
        "tokenizer.chat_template": "d", "tokenizer.chat_template.rag": "e",
        "tokenizer.chat_templates": ["rag"],
    }  # fmt: skip


def special_keys_of(folder: Path, told: dict) -> tuple[dict, list[str]]:
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    found, notes = special_keys(folder, Vocabulary(2), None)
    return {key: value.value for key, value in found.items()}, notes
