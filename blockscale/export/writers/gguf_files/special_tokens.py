# SPDX-License-Identifier: BSD-3-Clause
"""Tokens with a meaning: where text begins and ends, what is added by itself, conversations.

What llama.cpp's converter takes from where is gguf-py/gguf/vocab.py (b11434, `SpecialVocab`):
tokenizer_config.json, else config.json; what a tokenizer adds stands in its post_processor, else in
tokenizer_config.json. Here generation_config.json is read, too, and what is not added is written as
false, since llama.cpp's own choice goes by the name of the tokenizer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockscale.core.untrusted import json_object, read_json
from blockscale.export.writers.gguf_files.file import MetadataValue
from blockscale.export.writers.gguf_files.pretokenizers import flat
from blockscale.export.writers.gguf_files.vocabulary import Vocabulary

# {ours: the key's}
_NAMES = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding",
    "mask": "mask", "eot": "eot", "eom": "eom",
}  # fmt: skip
# texts at which llama.cpp stops by itself (src/llama-vocab.cpp, `special_eog_ids`)
_STOPS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "</s>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>",
)  # fmt: skip
_CODE_LLAMA_STOP = "\u2581<EOT>"


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty where there is no such file."""
    return json_object(read_json(path), path) if path.is_file() else {}


def special_keys(
    folder: Path, vocabulary: Vocabulary, tokenizer: Mapping[str, Any] | None
) -> tuple[dict[str, MetadataValue], list[str]]:
    """The keys, and what has to be said.

    tokenizer: what tokenizer.json holds; None where there is none, and llama.cpp's choice of what
    is added stays unless tokenizer_config.json says otherwise
    """
    data = read_object(folder / "tokenizer_config.json")
    configs = [read_object(folder / f"{name}.json") for name in ("config", "generation_config")]
    text = configs[0].get("text_config")
    configs.insert(1, text if isinstance(text, dict) else {})
    numbers = {
        n: _number(n, data, configs, vocabulary) for n in ("bos", "eos", "unk", "sep", "pad")
    }
    numbers["mask"] = _number("mask", data, configs, vocabulary)
    if numbers["bos"] is None:
        numbers["bos"] = _number("cls", data, configs, vocabulary)
    if numbers["eos"] is None:
        numbers["eos"] = numbers["sep"]
    adds, notes = _additions((tokenizer or {}).get("post_processor"), numbers, vocabulary)
    notes += _fill_up(adds, data, tokenizer is not None)
    notes += _stops(numbers, configs, vocabulary)
    by_name = {
        f"tokenizer.ggml.{_NAMES[name]}_token_id": MetadataValue("u32", number)
        for name, number in numbers.items()
        if number is not None
    }
    by_name |= {
        f"tokenizer.ggml.add_{n}_token": MetadataValue("bool", each) for n, each in adds.items()
    }
    return by_name | _templates(folder, data), notes


def _number(
    name: str, data: Mapping[str, Any], configs: list[dict[str, Any]], vocabulary: Vocabulary
) -> int | None:
    """The token that a directory names so, or None."""
    token = data.get(f"{name}_token")
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str) and token in vocabulary.numbers:
        return vocabulary.numbers[token]
    for config in configs:
        for number in _ids(config.get(f"{name}_token_id")):
            if 0 <= number < vocabulary.size:
                return number
    return None


def _ids(value: Any) -> list[int]:
    return [n for n in (value if isinstance(value, list) else [value]) if type(n) is int]


def _additions(
    post: Any, numbers: dict[str, int | None], vocabulary: Vocabulary
) -> tuple[dict[str, bool], list[str]]:
    """What a post_processor puts around a text; `numbers` are brought in line with it."""
    adds: dict[str, bool] = {}
    notes: list[str] = []
    for each in flat(post, "processors"):
        first, middle, last = _around(each)
        for name, texts in (("bos", first), ("eos", last)):
            entries = [vocabulary.numbers[t] for t in texts if t in vocabulary.numbers]
            if not entries:
                continue
            adds[name] = True
            notes += _several(name, texts)
            number = entries[0] if name == "bos" else entries[-1]
            if name == "eos" and numbers["eos"] not in (None, number):
                numbers["eot"] = numbers["eos"]  # it still ends an answer
            numbers[name] = number
        ends = [vocabulary.numbers.get(t) in (numbers["sep"], numbers["eos"]) for t in middle]
        if middle:  # between two texts, besides what each ends with
            adds["sep"] = ends[-1] if len(ends) == 2 else ends[0] and not last
    return adds, notes


def _fill_up(adds: dict[str, bool], data: Mapping[str, Any], whole: bool) -> list[str]:
    """Fill up what a post_processor leaves open by tokenizer_config.json, else with false.

    whole: whether there is a tokenizer.json, by whose post_processor alone transformers goes
    """
    notes = []
    for name in ("bos", "eos"):
        key = f"add_{name}_token"
        says = data.get(key) if isinstance(data.get(key), bool) else None
        if whole and says is not None and says != adds.get(name, False):
            action = "adds" if name in adds else "does not add"
            notes.append(
                f"tokenizer_config.json has {key}: {str(says).lower()}, and the post_processor of "
                f"tokenizer.json {action} one: llama.cpp adds it"
            )
        if says is not None or whole:
            adds.setdefault(name, bool(says))
    return notes


def _around(post: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Texts of the tokens before a text, between two, and after one."""
    kind = post.get("type")
    if kind in ("RobertaProcessing", "BertProcessing"):
        pairs = [post.get(key) for key in ("cls", "sep")]
        first, last = ([str(p[0])] if isinstance(p, list) and p else [] for p in pairs)
        return first, last * 2 if kind == "RobertaProcessing" else last, last
    if kind != "TemplateProcessing":
        return [], [], []
    first, _, last = _template(post.get("single"))
    return first, _template(post.get("pair"))[1], last


def _template(value: Any) -> tuple[list[str], list[str], list[str]]:
    """The special tokens before, between and behind the texts of a template."""
    parts: list[list[str]] = [[]]
    for each in value if isinstance(value, list) else ():
        token = each.get("SpecialToken") if isinstance(each, dict) else None
        if isinstance(token, dict) and isinstance(token.get("id"), str):
            parts[-1].append(token["id"])
        else:
            parts.append([])
    if len(parts) == 1:
        return [], [], []
    return parts[0], [t for part in parts[1:-1] for t in part], parts[-1]


def _several(name: str, texts: list[str]) -> list[str]:
    if len(texts) == 1:
        return []
    where, rest = ("before", texts[0]) if name == "bos" else ("behind", texts[-1])
    return [
        f"its tokenizer adds {' '.join(texts)} {where} a text, and llama.cpp adds only "
        f"{rest}: write the others into the prompt"
    ]


def _stops(
    numbers: dict[str, int | None], configs: list[dict[str, Any]], vocabulary: Vocabulary
) -> list[str]:
    """More tokens that end an answer become eot and eom; what has no place is said."""
    stop = vocabulary.numbers.get(_CODE_LLAMA_STOP)
    if stop is not None and numbers.get("eot") is None:
        numbers["eot"] = stop
    more = [n for config in configs for n in _ids(config.get("eos_token_id"))]
    rest = []
    for number in dict.fromkeys(n for n in more if 0 <= n < vocabulary.size):
        if number in numbers.values() and number != numbers["pad"]:
            continue
        if vocabulary.text(number) in _STOPS:
            continue
        place = next((name for name in ("eot", "eom") if numbers.get(name) is None), None)
        if place is None:
            rest.append(vocabulary.text(number))
        else:
            numbers[place] = number
    if not rest:
        return []
    return [
        f"answers also end with {', '.join(rest)}, for which GGUF has no key: pass them to "
        "llama.cpp as stop words"
    ]


def _templates(folder: Path, data: Mapping[str, Any]) -> dict[str, MetadataValue]:
    """The template of conversations, and others by name (`GGUFWriter.add_chat_template`)."""
    result = data.get("chat_template") or read_object(folder / "chat_template.json").get(
        "chat_template"
    )
    if (folder / "chat_template.jinja").is_file():  # which transformers prefers
        result = (folder / "chat_template.jinja").read_text()
    templates = {"default": result} if isinstance(result, str) else {}
    for each in result if isinstance(result, list) else ():
        if isinstance(each, dict) and isinstance(each.get("template"), str):
            templates[str(each.get("name", ""))] = each["template"]
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text()
    keys: dict[str, MetadataValue] = {}
    for name, text in templates.items():
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        if name == "default":
            keys["tokenizer.chat_template"] = MetadataValue("text", text)
        elif plain:
            keys[f"tokenizer.chat_template.{plain}"] = MetadataValue("text", text)
    others = [key.split(".", 2)[2] for key in keys if key.count(".") == 2]
    if others:
        keys["tokenizer.chat_templates"] = MetadataValue("text", others)
    return keys
