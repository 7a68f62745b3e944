"""A model's tokenizer.json -> the keys that llama.cpp reads, for byte-level BPE.

Which way text is cut into words before its bytes are joined is named by `tokenizer.ggml.pre`; it is
told by the regular expression in tokenizer.json.
"""

from pathlib import Path
from typing import Any

from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.export.writers.gguf_files.head import Value

_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_CUTS = {rf"{_START}\p{{N}}{{1,3}}{_TAIL}": "llama-bpe", rf"{_START}\p{{N}}{_TAIL}": "qwen2"}
_MOST = 1 << 28  # bytes of tokenizer.json


def tokenizer_keys(folder: Path, size: int) -> tuple[dict[str, Value], str]:
    """The keys of a directory's tokenizer, and what has to be said of it.

    size: of the vocabulary; rows of the embedding without a token become unused ones.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}, f"{folder} has no tokenizer.json: the file has no tokenizer"
    data = json_object(read_json(path, most=_MOST), path)
    model = data.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        return {}, "its tokenizer is no byte-level BPE: the file has no tokenizer"
    tokens, types = _tokens(model.get("vocab"), data.get("added_tokens"), size)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
    cut = _cut(data.get("pre_tokenizer"))
    found = {
        "tokenizer.ggml.model": Value("text", "gpt2"),
        "tokenizer.ggml.pre": Value("text", cut or "default"),
        "tokenizer.ggml.tokens": Value("text", tokens),
        "tokenizer.ggml.token_type": Value("i32", types),
        "tokenizer.ggml.merges": Value("text", merges),
    }
    told = "" if cut else "how its tokenizer cuts words is not known to llama.cpp by a name here"
    return found | _special(folder, tokens), told


def _tokens(vocab: Any, added: Any, size: int) -> tuple[list[str], list[int]]:
    """Every token by its number, and of what type it is."""
    if not isinstance(vocab, dict) or not all(type(n) is int and n >= 0 for n in vocab.values()):
        raise ValueError("tokenizer.json: its vocabulary is no object of texts and numbers")
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [_UNUSED] * size
    for text, number in vocab.items():
        if number < size:
            tokens[number], types[number] = text, _NORMAL
    for each in added if isinstance(added, list) else ():
        number, text = (each.get("id"), each.get("content")) if isinstance(each, dict) else (-1, "")
        if type(number) is int and 0 <= number < size and isinstance(text, str):
            tokens[number], types[number] = text, _CONTROL if each.get("special") else _USER
    return tokens, types


def _cut(found: Any) -> str | None:
    """llama.cpp's name for how words are cut, or None."""
    steps = found.get("pretokenizers", [found]) if isinstance(found, dict) else []
    for each in steps:
        pattern = each.get("pattern") if isinstance(each, dict) else None
        if isinstance(pattern, dict) and pattern.get("Regex") in _CUTS:
            return _CUTS[pattern["Regex"]]
    kinds = [each.get("type") for each in steps if isinstance(each, dict)]
    plain = kinds == ["ByteLevel"] and steps[0].get("use_regex", True)
    return "gpt-2" if plain else None


def _special(folder: Path, tokens: list[str]) -> dict[str, Value]:
    """Numbers of the tokens with a meaning, and the template of conversations."""
    path = folder / "tokenizer_config.json"
    told = json_object(read_json(path), path) if path.is_file() else {}
    found: dict[str, Value] = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = told.get(f"{ours}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in tokens:
            key = f"tokenizer.ggml.{theirs}_token_id"
            found[key] = Value("u32", tokens.index(token))
    if isinstance(told.get("add_bos_token"), bool):
        found["tokenizer.ggml.add_bos_token"] = Value("bool", told["add_bos_token"])
    template = told.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    if isinstance(template, str):
        found["tokenizer.chat_template"] = Value("text", template)
    return found
