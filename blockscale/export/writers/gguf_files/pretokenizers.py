# SPDX-License-Identifier: BSD-3-Clause
"""What a tokenizer.json does to text before its model does: which of it llama.cpp does, too.

How text is cut into words has a name there (`tokenizer.ggml.pre`).

llama.cpp's own converter looks a tokenizer up by a hash of what it makes of one text
(convert_hf_to_gguf_update.py), so it knows those of its list alone. Here the steps of
`pre_tokenizer` are brought to one spelling and compared with the patterns that a name stands for in
llama.cpp (src/llama-vocab.cpp, b11434: `llm_tokenizer_bpe` and `llama_vocab::impl::load`).
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

BYTES = "bytes"  # the step that writes bytes as characters
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_BREAKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _BREAKS
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BREAKS
_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}{_SIGNS}"
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{_SIGNS}"
_GPT4O = rf"{_UPPER}{_CONTRACTION}?|{_LOWER}{_CONTRACTION}?|\p{{N}}{{1,3}}{_SLASHES}"
_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _BREAKS
)
_CASED = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴ"
    r"ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_HAN = r"[一-龥ࠀ-一가-퟿]+"
_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_CLAUSES = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_EACH, _RUNS = r"\p{N}", r"\p{N}+"


class Pretokenizer(NamedTuple):
    """A name of llama.cpp's. whole: whether it takes a word that is a token without merging."""

    name: str
    whole: bool = False


# {steps, without the bytes at the end: the names, of which the first is the usual one}
_KNOWN: dict[tuple[str, ...], tuple[Pretokenizer, ...]] = {
    (_GPT2,): (Pretokenizer("gpt-2"),),
    (_EACH, _GPT2): (Pretokenizer("smollm"),),
    (_LLAMA3,): (Pretokenizer("llama-bpe", True), Pretokenizer("smaug-bpe")),
    (_QWEN2,): (Pretokenizer("qwen2"),),
    (rf"{_LETTERS}|\p{{N}}{_SIGNS}",): (Pretokenizer("ufakzeka"),),
    (r"[^\n]+|[\n]+", _QWEN2): (Pretokenizer("laguna"),),
    (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_BREAKS}",
    ): (Pretokenizer("qwen35"),),
    (_EACH + "{1,3}", rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}+{_SIGNS}"): (
        Pretokenizer("minicpm5", True),
    ),
    (
        rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
        r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ): (Pretokenizer("jais-2"),),
    (
        rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_BREAKS}",
    ): (Pretokenizer("seed-coder"),),
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    ): (Pretokenizer("bailingmoe"),),
    (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ): (Pretokenizer("exaone-moe"),),
    (rf"{_UPPER}|{_LOWER}|\p{{N}}{_SLASHES}",): (Pretokenizer("tekken", True),),
    (_GPT4O,): (Pretokenizer("gpt-4o"),),
    (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O): (Pretokenizer("tiny_aya"),),
    (_RUNS, r"(?=(\d{3})+(?!\d))"): (Pretokenizer("superbpe"),),
    (_EACH + "{1,3}", _KANA, _WORDS): (Pretokenizer("deepseek-v3"),),
    (r"[\r\n]", _CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN, _EACH): (
        Pretokenizer("deepseek-llm"),
    ),
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _EACH): (Pretokenizer("deepseek-coder"),),
    ("Punctuation Contiguous", _GPT2, BYTES, _RUNS, "[0-9][0-9][0-9]"): (Pretokenizer("falcon"),),
    (_CLAUSES,): (Pretokenizer("bloom"),),
    (_CLAUSES, _EACH): (Pretokenizer("viking"),),
}  # fmt: skip
# llama.cpp writes these patterns otherwise, since its own engine has not all of their classes
_NEARLY = {
    "tekken": "letters that are not ASCII and combining marks",
    "gpt-4o": "letters that are not ASCII and combining marks",
    "deepseek-llm": "runs of line breaks, and of digits where a token has several,",
}


def steps_of(pre_tokenizer: Any) -> tuple[str, ...] | None:
    """The cuts of a `pre_tokenizer` in order, patterns in one spelling; None for other steps.

    BYTES stands where characters become those of bytes.
    """
    if not isinstance(pre_tokenizer, Mapping):
        return None if pre_tokenizer is not None else ()
    if pre_tokenizer.get("type") == "Sequence":
        names: tuple[str, ...] = ()
        for each in pre_tokenizer.get("pretokenizers") or ():
            steps = steps_of(each)
            if steps is None:
                return None
            names += steps
        return names
    return _step(pre_tokenizer)


def _step(each: Mapping[str, Any]) -> tuple[str, ...] | None:
    kind = each.get("type")
    if kind == "ByteLevel":
        return (_GPT2, BYTES) if each.get("use_regex", True) else (BYTES,)
    if kind == "Digits":
        return (_EACH if each.get("individual_digits") else _RUNS,)
    if kind == "Punctuation":
        return (f"Punctuation {each.get('behavior')}",)
    pattern = each.get("pattern")
    if kind != "Split" or not isinstance(pattern, Mapping):
        return None
    text = pattern.get("Regex")
    # a pattern that takes every character leaves nothing between its matches
    how = each.get("behavior", "Isolated"), bool(each.get("invert"))
    same = how == ("Isolated", False) or (
        how == ("Removed", True) and isinstance(text, str) and text.endswith(r"|\s+")
    )
    return (_spelling(text),) if isinstance(text, str) and same else None


def _spelling(pattern: str) -> str:
    """One spelling: line breaks escaped, composed characters, as llama.cpp's source has them."""
    plain = pattern.replace("\r", r"\r").replace("\n", r"\n").replace(r"\"", '"')
    return unicodedata.normalize("NFC", plain)


_BY_STEPS = {tuple(map(_spelling, steps)): names for steps, names in _KNOWN.items()}


def known_for(pre_tokenizer: Any) -> tuple[Pretokenizer, ...]:
    """llama.cpp's names for these cuts; none where it has no such."""
    steps = steps_of(pre_tokenizer)
    if not steps or BYTES not in steps:
        return ()
    return _BY_STEPS.get(steps[:-1] if steps[-1] == BYTES else steps, ())


def nearly(name: str) -> str:
    """What llama.cpp may cut otherwise under a name; empty where it cuts as the tokenizer does."""
    return _NEARLY.get(name, "")


def flat(value: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """A step, or the steps of the sequence that it is. inner: the key of a sequence's steps."""
    if isinstance(value, Mapping):
        steps = value.get(inner)
        for each in steps if isinstance(steps, list) else ():
            yield from flat(each, inner)
        if not isinstance(steps, list):
            yield value


def not_normalized(
    data: Mapping[str, Any], checks: Mapping[str, Callable[[Mapping[str, Any]], bool]]
) -> list[str]:
    """What has to be said of normalizers that llama.cpp has not.

    data: of tokenizer.json; checks: {type: whether llama.cpp does what such a step says}
    """
    rest = [
        str(each.get("type"))
        for each in flat(data.get("normalizer"), "normalizers")
        if each.get("type") not in checks or not checks[each["type"]](each)
    ]
    if not rest:
        return []
    names = ", ".join(dict.fromkeys(rest))
    return [
        f"llama.cpp does not normalize text as its tokenizer does ({names}): normalize text "
        "first, or it may become other tokens"
    ]


def always(step: Mapping[str, Any]) -> bool:
    """Whatever a step says."""
    del step
    return True
