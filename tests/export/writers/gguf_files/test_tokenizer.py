"""Tokenizers of byte-level BPE as llama.cpp has them; others are left out, and it is said."""

import json
from pathlib import Path

import pytest

from blockscale.export.writers.gguf_files.tokenizer import tokenizer_keys

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUT = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Split", "pattern": {"Regex": QWEN}}, {"type": "ByteLevel"}],
}
MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
ADDED = [
    {"id": 3, "content": "<e>", "special": True},
    {"id": 4, "content": "<u>", "special": False},
]


def folder(path: Path, config: dict | None = None, **changes: object) -> Path:
    data = {"model": MODEL, "added_tokens": ADDED, "pre_tokenizer": CUT} | changes
    (path / "tokenizer.json").write_text(json.dumps(data))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_byte_level_bpe(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<e>"}, "bos_token": None, "add_bos_token": False,
              "chat_template": "{{ x }}"}  # fmt: skip
    found, told = tokenizer_keys(folder(tmp_path, config), 6)
    values = {key.removeprefix("tokenizer."): value.value for key, value in found.items()}
    assert told == "" and values == {
        "ggml.model": "gpt2", "ggml.pre": "qwen2", "ggml.merges": ["a b"],
        "ggml.tokens": ["a", "b", "ab", "<e>", "<u>", "[PAD5]"],
        "ggml.token_type": [1, 1, 1, 3, 4, 5], "ggml.eos_token_id": 3,
        "ggml.add_bos_token": False, "chat_template": "{{ x }}",
    }  # fmt: skip


def test_pairs_and_unknown_cuts(tmp_path: Path) -> None:
    pairs = MODEL | {"merges": [["a", "b"]]}
    found, told = tokenizer_keys(folder(tmp_path, model=pairs, pre_tokenizer=None), 5)
    assert found["tokenizer.ggml.merges"].value == ["a b"]
    assert found["tokenizer.ggml.pre"].value == "default" and "not known to llama.cpp" in told
    found, told = tokenizer_keys(folder(tmp_path, pre_tokenizer={"type": "ByteLevel"}), 5)
    assert found["tokenizer.ggml.pre"].value == "gpt-2" and told == ""


def test_what_is_left_out(tmp_path: Path) -> None:
    found, told = tokenizer_keys(tmp_path, 5)
    assert not found and "has no tokenizer.json" in told
    for model in ({"type": "Unigram"}, MODEL | {"byte_fallback": True}, None):
        found, told = tokenizer_keys(folder(tmp_path, model=model), 5)
        assert not found and "no byte-level BPE" in told


@pytest.mark.parametrize("vocab", [None, {"a": "0"}, {"a": -1}, ["a"], {"a": True}])
def test_damaged(vocab: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its vocabulary is no object of texts and numbers"):
        tokenizer_keys(folder(tmp_path, model=MODEL | {"vocab": vocab}), 5)
